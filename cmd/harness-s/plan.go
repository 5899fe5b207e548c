package main

import (
	"fmt"
	"os"
	"strings"

	"harness-s/bench"
	"harness-s/internal/nodes"
	"harness-s/kernels"
	"harness-s/model"
	"harness-s/trainer"
)

type planCmd struct {
	Config string   `arg:"" help:"Run config (YAML)." placeholder:"CONFIG"`
	Set    []string `help:"Override a key." placeholder:"KEY=VALUE" sep:"none"`
	Device string   `help:"A GPU by name (h200, h100, a100, b200, l40s, rtx4090, rtx5090; data sheet), or this: this machine's GPU, else its CPU (measured)." default:"this"`
	Shape  string   `help:"Plan for a published size instead of model.path: 0.8b, 4b or 9b." placeholder:"SIZE"`
	Tokens int      `help:"Tokens of a rollout, prompt included; 0: a third of rollout.max_context."`
	Nodes  int      `help:"Machines with devices: GPUs each that share the training; 0: as NNODES or Slurm say, else 1."`
	JSON   bool     `help:"Machine-readable output on stdout."`
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
	device, err := c.device(cfg)
	if err != nil {
		return err
	}
	if device.Nodes, err = c.nodes(os.Getenv); err != nil {
		return usageError{err}
	}
	shape, err := c.shape(cfg)
	if err != nil {
		return err
	}
	p, err := trainer.NewPlan(cfg, shape, device, c.Tokens)
	if err != nil {
		return err
	}
	if c.JSON {
		if err := printJSON(os.Stdout, p); err != nil {
			return err
		}
	} else {
		p.Write(os.Stderr)
	}
	if !p.Fits {
		return fmt.Errorf("plan: %s does not fit; would: %s", c.Config, strings.Join(p.Mend, ", "))
	}
	return nil
}

// nodes is how many machines share the training.
func (c *planCmd) nodes(getenv func(string) string) (int, error) {
	switch {
	case c.Nodes < 0 || c.Nodes > nodes.MaxNodes:
		return 0, fmt.Errorf("plan: --nodes %d: want 1 to %d, or 0 for what NNODES or Slurm say", c.Nodes, nodes.MaxNodes)
	case c.Nodes > 0:
		return c.Nodes, nil
	}
	return nodes.Count(getenv)
}

func (c *planCmd) shape(cfg trainer.Config) (model.Config, error) {
	if c.Shape == "" {
		shape, err := trainer.ReadShape(cfg)
		if err != nil {
			return shape, fmt.Errorf("%w; --shape plans for a published size without the folder", err)
		}
		return shape, nil
	}
	shape, err := bench.Size(strings.ToLower(c.Shape))
	if err != nil {
		return shape, usageError{err}
	}
	return shape, nil
}

// device is the GPU named, or what this machine has.
func (c *planCmd) device(cfg trainer.Config) (trainer.Device, error) {
	if c.Device != "this" {
		d, err := bench.ModelDeviceByKey(strings.ToLower(c.Device))
		if err != nil {
			return trainer.Device{}, usageError{err}
		}
		return trainer.Device{Name: d.Name, Memory: d.Memory, Rate: d.ProductRate(), GPU: &d.DeviceInfo}, nil
	}
	if name, _ := kernels.Resolve(cfg.Backend); name == "cuda" {
		info, err := kernels.FirstDevice()
		if err != nil {
			return trainer.Device{}, err
		}
		return trainer.Device{Name: info.Name, Memory: info.Memory, Rate: bench.GuessProductRate(info), GPU: &info}, nil
	}
	return trainer.ThisMachine(cfg.Threads)
}
