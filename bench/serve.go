package bench

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sync/errgroup"

	"harness-s/kernels"
	"harness-s/model"
	"harness-s/model/tokenizer"
	"harness-s/rollout"
	"harness-s/rollout/policy"
	"harness-s/rollout/vllm"
)

// Serve times the same work as Decode through the embedded server over loopback HTTP: 64 requests at once, by the
// client that the trainer uses, in one process with the server. Prompts differ from round to round, so that no kept
// prefix helps.
func Serve(ctx context.Context, o Options) (Result, error) {
	r := Result{Bench: "serve", Shape: fmt.Sprintf("%d requests x (%d -> %d)", decodeSeqs, decodePrompt, decodeNew), Threads: o.Threads}
	dir, err := os.MkdirTemp("", "harness-s-bench-")
	if err != nil {
		return r, fmt.Errorf("bench: %w", err)
	}
	defer os.RemoveAll(dir)
	path, err := servedModel(dir)
	if err != nil {
		return r, err
	}
	s, err := policy.Open(path, policy.OpenOptions{Threads: o.Threads})
	if err != nil {
		return r, err
	}
	url, stop, err := s.StartLocal()
	if err != nil {
		return r, err
	}
	defer stop()
	client, err := vllm.Dial(ctx, vllm.Options{URLs: []string{url}})
	if err != nil {
		return r, err
	}
	defer client.Close()
	round := 0
	r.Runs, err = measure(o.repeat(), decodeSeqs*decodeNew, func() error {
		round++
		return generateAll(ctx, client, round)
	})
	if err == nil {
		r.TokensPerS = median(r.Runs)
	}
	return r, err
}

// servedModel writes a random model of the benchmark's shape, with a tokenizer that has no merges and whose end token the
// server does not know: every request runs to its full length.
func servedModel(dir string) (string, error) {
	be, err := kernels.NewCPU(1)
	if err != nil {
		return "", fmt.Errorf("bench: %w", err)
	}
	defer be.Close()
	m, err := model.New(Shape(), be, 1, model.Options{})
	if err != nil {
		return "", fmt.Errorf("bench: %w", err)
	}
	defer m.Close()
	t, err := tokenizer.Train(slices.Values([]string{"a"}), 300, []tokenizer.Added{{Content: "<end>", Special: true}})
	if err != nil {
		return "", fmt.Errorf("bench: %w", err)
	}
	path := filepath.Join(dir, "bench")
	if err := m.Save(path, model.SaveOptions{}); err != nil {
		return "", fmt.Errorf("bench: %w", err)
	}
	return path, t.WriteFiles(path, tokenizer.Config{EOS: "<end>", Pad: "<end>"})
}

func generateAll(ctx context.Context, client *vllm.Client, round int) error {
	g, ctx := errgroup.WithContext(ctx)
	for i, prompt := range randomPrompts(Shape().Vocab) {
		prompt[0] = int32(round % Shape().Vocab)
		g.Go(func() error {
			reply, err := client.Generate(ctx, rollout.Request{
				RolloutID: fmt.Sprint(i), Prompt: prompt, MaxTokens: decodeNew, Temperature: 1, Seed: int64(round*decodeSeqs + i), Stop: []int32{},
			})
			if err == nil && len(reply.Tokens) != decodeNew {
				err = fmt.Errorf("bench: request %d ended after %d of %d tokens", i, len(reply.Tokens), decodeNew)
			}
			return err
		})
	}
	return g.Wait()
}
