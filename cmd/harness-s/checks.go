package main

import (
	"context"
	"fmt"
	"time"

	"harness-s/rollout"
	"harness-s/rollout/env/sqlenv"
	"harness-s/rollout/env/sqlenv/taskgen"
	"harness-s/rollout/vllm"
)

// checkEnvironment opens a task of an environment and runs its gold solution.
func checkEnvironment(ctx context.Context, name string) ([]finding, error) {
	switch name {
	case "sql", "dbbench":
		return []finding{checkSQL(ctx)}, nil
	}
	return nil, usagef("doctor: no environment %q; there are sql and dbbench", name)
}

func checkSQL(ctx context.Context) finding {
	f := finding{What: "env sql", need: true, Mend: "build with CGO_ENABLED=1 and a C compiler (make build): SQLite is compiled in"}
	src, err := taskgen.New(taskgen.Options{})
	if err != nil {
		f.Found = err.Error()
		return f
	}
	env := sqlenv.New(sqlenv.Options{Name: "sql"})
	task := src.Task(taskgen.Test, 0)
	session, err := env.Open(ctx, task)
	if err != nil {
		f.Found = err.Error()
		return f
	}
	defer session.Close()
	f.OK, f.Mend = true, ""
	f.Found = fmt.Sprintf("tier %s; opened task %s; official rows come with --set data.path=FILE", env.Tier(), task.ID)
	return f
}

// checkEndpoint asks a policy server what it can do.
func checkEndpoint(ctx context.Context, url string) []finding {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	f := finding{What: "endpoint", need: true}
	client, err := vllm.Dial(ctx, vllm.Options{URLs: []string{url}})
	if err != nil {
		f.Found, f.Mend = err.Error(), "start one: harness-s serve --model DIR --dev, or vllm serve"
		return []finding{f}
	}
	defer client.Close()
	f.OK, f.Found = true, fmt.Sprintf("%s serves %s, at most %d tokens", url, client.ModelName(), client.MaxModelLen())
	return []finding{f, checkGenerate(ctx, client)}
}

func checkGenerate(ctx context.Context, client *vllm.Client) finding {
	f := finding{What: "generate", need: true}
	// Several tokens: a prompt of one ends vLLM's CPU engine (0.32, Qwen3.5).
	prompt := []int32{0, 1, 2, 3, 4, 5, 6, 7}
	reply, err := client.Generate(ctx, rollout.Request{RolloutID: "doctor", Prompt: prompt, MaxTokens: 1, Temperature: 1, Seed: 1})
	if err != nil {
		f.Found = err.Error()
		return f
	}
	f.OK, f.Found = true, fmt.Sprintf("one token with its log-prob (%.3f)", reply.Logprobs[0])
	return f
}
