package main

import (
	"maps"
	"os"
	"slices"
	"strings"

	"harness-s/trainer"
)

type planCmd struct {
	Config string   `arg:"" help:"Run config (YAML)." placeholder:"CONFIG"`
	Set    []string `help:"Override a key." placeholder:"KEY=VALUE" sep:"none"`
	Device string   `help:"this (measured), or a GPU by name: h200, h100, a100, l40s, rtx4090 (datasheet memory, published product rates)." default:"this"`
	Tokens int      `help:"Tokens of a rollout, prompt included; 0: a third of rollout.max_context."`
	JSON   bool     `help:"Machine-readable output on stdout."`
}

// gpus are memory and dense bf16 product rates: measured where published (H200: 780 TFLOP/s on random data), else 0.8 of
// the datasheet's.
var gpus = map[string]trainer.Device{
	"h200":    {Name: "H200", Memory: 141e9, Rate: 780e12},
	"h100":    {Name: "H100 80 GB", Memory: 80e9, Rate: 780e12},
	"a100":    {Name: "A100 80 GB", Memory: 80e9, Rate: 250e12},
	"l40s":    {Name: "L40S", Memory: 48e9, Rate: 290e12},
	"rtx4090": {Name: "RTX 4090", Memory: 24e9, Rate: 132e12},
}

// Run prints the estimate.
func (c *planCmd) Run() error {
	if c.Tokens < 0 {
		return usagef("plan: --tokens must not be negative")
	}
	cfg, err := trainer.LoadConfig(c.Config, c.Set)
	if err != nil {
		return usageError{err}
	}
	if c.Tokens == 0 {
		c.Tokens = max(1, cfg.Rollout.MaxContext/3)
	}
	device, ok := gpus[strings.ToLower(c.Device)]
	if !ok {
		if c.Device != "this" {
			return usagef("plan: no device %q; there are this, %s", c.Device, strings.Join(gpuNames(), ", "))
		}
		if device, err = trainer.ThisMachine(cfg.Threads); err != nil {
			return err
		}
	}
	p, err := trainer.NewPlan(cfg, device, c.Tokens)
	if err != nil {
		return err
	}
	if c.JSON {
		return printJSON(os.Stdout, p)
	}
	p.Write(os.Stderr)
	return nil
}

func gpuNames() []string { return slices.Sorted(maps.Keys(gpus)) }
