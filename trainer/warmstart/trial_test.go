package warmstart

import (
	"context"
	"os"
	"strings"
	"testing"

	"harness-s/internal/testutil"
	"harness-s/model/tokenizer"
	"harness-s/rollout/harness"
	"harness-s/trainer/config"
)

func TestShow(t *testing.T) {
	cfg := Default()
	cfg.Pool = testutil.Root(t) + "/recipes/pools/sql"
	cfg.Demo.Corpus = 500
	pool, err := harness.LoadPool(cfg.Pool)
	if err != nil {
		t.Fatal(err)
	}
	tok, err := trainTokenizer(context.Background(), cfg, pool)
	if err != nil {
		t.Fatal(err)
	}
	d, _ := newDemonstrator(cfg, pool, tok)
	n := 0
	by := map[string][2]int{}
	for i := range 300 {
		rec, err := d.record(context.Background(), i, d.rng(i))
		if err != nil {
			t.Fatal(err)
		}
		n += len(rec.Rows[0].Tokens)
		task := d.tasks.Make("demo", i)
		k := rec.Harness + " " + task.Kind + " " + strings.Join(task.Traps.Names(), "+")
		x := by[k]
		if rec.Success {
			x[0]++
		}
		x[1]++
		by[k] = x
		if i < 25 {
			var p []string
			for _, id := range rec.Rows[0].Tokens {
				p = append(p, string(tok.TokenBytes(id)))
			}
			t.Log(rec.Harness, rec.Success, len(p), "\n"+strings.Join(p, "|"))
		}
	}
	for k, v := range by {
		t.Log(k, v)
	}
	t.Log("tokens a demo", float64(n)/300, tok.VocabSize())
	var _ = tokenizer.Added{}
}

func TestTrial(t *testing.T) {
	path := os.Getenv("WARM")
	if path == "" {
		t.Skip()
	}
	cfg := Default()
	if err := config.Read(path, strings.Fields(os.Getenv("SET")), &cfg); err != nil {
		t.Fatal(err)
	}
	cfg.Pool = testutil.Root(t) + "/recipes/pools/sql"
	out := os.Getenv("OUT")
	if err := Make(context.Background(), cfg, out, Options{Threads: 2, Out: os.Stderr}); err != nil {
		t.Fatal(err)
	}
}
