package main

import (
	"context"
	"os"

	"harness-s/trainer/config"
	"harness-s/trainer/warmstart"
)

type warmstartCmd struct {
	Config  string   `arg:"" help:"Warm-start config (YAML), such as recipes/policies/sql.yaml." placeholder:"CONFIG"`
	Set     []string `help:"Override a key: --set optim.steps=100. May be given again." placeholder:"KEY=VALUE" sep:"none"`
	Out     string   `help:"Folder to write; it must not exist." required:"" placeholder:"DIR"`
	Threads int      `help:"CPU threads; 0: all cores. The result does not depend on it."`
}

// Run makes the policy.
func (c *warmstartCmd) Run(ctx context.Context) error {
	cfg := warmstart.Default()
	if err := config.Read(c.Config, c.Set, &cfg); err != nil {
		return usageError{err}
	}
	if err := cfg.Validate(); err != nil {
		return usageError{err}
	}
	return warmstart.Make(ctx, cfg, c.Out, warmstart.Options{Threads: c.Threads, Out: os.Stderr})
}
