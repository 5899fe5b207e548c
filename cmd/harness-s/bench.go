package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"

	"harness-s/bench"
	"harness-s/internal/atomicfile"
)

type benchCmd struct {
	What    string `arg:"" help:"kernels, step, decode or serve." enum:"kernels,step,decode,serve"`
	Threads int    `help:"CPU threads; 0: all cores."`
	Repeat  int    `help:"Timed runs after the warm-up." default:"5"`
	JSON    string `help:"Write JSON to a file; - for stdout." placeholder:"FILE|-"`
}

// Run measures and prints one line a result.
func (c *benchCmd) Run(ctx context.Context) error {
	if c.Repeat < 1 || c.Repeat > 1000 || c.Threads < 0 || c.Threads > 1024 {
		return usagef("bench: --repeat 1 to 1000, --threads 0 to 1024")
	}
	results, err := bench.Run(ctx, c.What, bench.Options{Threads: c.Threads, Repeat: c.Repeat})
	if err != nil {
		return err
	}
	for _, r := range results {
		fmt.Fprintln(os.Stderr, r)
	}
	if c.JSON == "" {
		return nil
	}
	// One result is one object, as scripts expect; kernels give a list.
	var v any = results
	if len(results) == 1 {
		v = results[0]
	}
	if c.JSON == "-" {
		return printJSON(os.Stdout, v)
	}
	data, err := json.MarshalIndent(v, "", " ")
	if err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	return atomicfile.Write(c.JSON, append(data, '\n'))
}
