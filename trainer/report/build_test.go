package report

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"harness-s/rollout"
)

// writeRun makes a small run folder by hand.
func writeRun(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	put := func(name, text string) {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	put("config.yaml", "seed: 1\n")
	put("metrics.jsonl", `{"step":0,"eval/avg@3/h0":0.5}`+"\n"+
		`{"step":1,"reward/mean":0.25,"success/h0":0.5,"mismatch/max_abs":0}`+"\n"+
		`{"step":2,"reward/mean":null,"success/h0":0.75,"mismatch/max_abs":2e-6}`+"\n")
	put("summary.json", `{"before":{"h0":{"pass@3":0.5,"avg@3":0.4,"tasks":60}},"after":{"h0":{"pass@3":0.9,"avg@3":0.8,"tasks":60,"broken":["x"]},`+
		`"routed":{"pass@3":1,"avg@3":0.9,"tasks":60}},"steps":2,"rollouts":32,"rescue_rate":0.5,"rescued_share":0.75,"wall_s":61,"seed":7}`)
	plus, minus := 1.5, -0.5
	records(t, dir, "step_000002", []*rollout.Record{
		record("a", "h0", "train", false, nil, true),
		record("b", "look", "rescue", true, &plus, false),
		record("c", "count", "rescue", false, &minus, false),
	})
	records(t, dir, "after_000002", []*rollout.Record{record("d", "h0", "eval", true, nil, false), record("e", "h0", "eval", false, nil, false)})
	return dir
}

func record(id, harness, phase string, success bool, advantage *float64, replaced bool) *rollout.Record {
	return &rollout.Record{
		ID: id, Step: 2, Group: "g", Task: "t", TaskKind: "count", Env: "sql", Harness: harness, Phase: phase,
		Rows:    []rollout.Row{{Tokens: []int32{1, 2, 3}, Mask: []uint8{0, 1, 1}, Logprobs: []float32{0, -0.5, -0.25}, TurnBounds: [][2]int{{1, 3}}}},
		Turns:   []rollout.Turn{{Role: "assistant", Text: "<script>alert(1)</script>"}},
		Success: success, Status: rollout.Completed, Advantage: advantage, Replaced: replaced,
	}
}

func records(t *testing.T, dir, name string, all []*rollout.Record) {
	t.Helper()
	if err := os.MkdirAll(filepath.Join(dir, "rollouts"), 0o755); err != nil {
		t.Fatal(err)
	}
	w, err := rollout.OpenRecords(filepath.Join(dir, "rollouts", name+".jsonl.zst"), 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range all {
		if err := w.Write(r); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestReportShowsTheRun(t *testing.T) {
	dir := writeRun(t)
	path, err := Write(dir)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	html := string(raw)
	for _, want := range []string{
		"80.0%", "before: 40.0%", "75.0%", "Reward of retained groups", "61 s", // numbers of the summary
		`class="pos"`, `class="neg"`, `class="ctx"`, "log-prob -0.5000", "replaced by rescue attempts", // samples down to tokens
		"50.0% <small>2</small>", // the kind table
		"step 2: 0.8",            // the last point of H0 on held-out tasks, which only the summary has
		"<b>prompt</b><pre>[1]",  // what the policy read
	} {
		if !strings.Contains(html, want) {
			t.Errorf("the report lacks %q", want)
		}
	}
	for _, not := range []string{"<script>", "http://", "https://", "NaN"} {
		if strings.Contains(html, not) {
			t.Errorf("the report holds %q", not)
		}
	}
}

func TestReportOfARunAtWork(t *testing.T) {
	dir := t.TempDir()
	if _, err := Write(dir); err != nil {
		t.Errorf("an empty folder: %v", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "metrics.jsonl"), []byte("{\"step\":1}\n{\"step\":2,\"rew"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := Write(dir); err != nil {
		t.Errorf("half a last line: %v", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "metrics.jsonl"), []byte("{\"step\":1}\nnot json\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := Write(dir); err == nil || !strings.Contains(err.Error(), "metrics.jsonl:2") {
		t.Errorf("a spoiled line: %v", err)
	}
}

func TestView(t *testing.T) {
	h := Handler(writeRun(t))
	for _, c := range []struct {
		path string
		code int
		want string
	}{
		{"/", 200, `href="/step/2"`}, {"/step/2", 200, "3 rollouts"}, {"/step/2", 200, "failed under H0 and rescued"}, {"/step/9", 404, ""}, {"/step/x", 404, ""}, {"/etc/passwd", 404, ""},
	} {
		w := httptest.NewRecorder()
		r := httptest.NewRequest(http.MethodGet, c.path, nil)
		r.Host = "127.0.0.1:8080"
		h.ServeHTTP(w, r)
		if w.Code != c.code || !strings.Contains(w.Body.String(), c.want) {
			t.Errorf("%s: %d %s", c.path, w.Code, fmt.Sprintf("%.200s", w.Body.String()))
		}
	}
}

func TestViewAnswersLoopbackNamesOnly(t *testing.T) {
	h := Handler(writeRun(t))
	for host, code := range map[string]int{"localhost:8080": 200, "[::1]:8080": 200, "127.0.0.1": 200, "evil.example:8080": 403, "10.0.0.1": 403} {
		w := httptest.NewRecorder()
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.Host = host
		h.ServeHTTP(w, r)
		if w.Code != code {
			t.Errorf("host %s: %d, want %d", host, w.Code, code)
		}
	}
}
