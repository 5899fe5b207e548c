package main

import (
	"errors"
	"fmt"
	"io"
	"os"

	"harness-s/internal/atomicfile"
	"harness-s/kernels"
	"harness-s/model"
)

type scoreCmd struct {
	Model   string `help:"Hugging Face folder." required:"" placeholder:"DIR"`
	Input   string `help:"JSON lines {\"id\",\"token_ids\",\"weights\"?}; - for stdin." required:"" placeholder:"FILE"`
	Backend string `help:"Where to compute: cpu, cuda, sim (cuda's code on a simulated device)." enum:"cpu,sim,cuda" default:"cpu"`
	DType   string `name:"dtype" help:"Storage type of computation." enum:"fp32,bf16" default:"fp32"`
	Grad    string `help:"Also write the gradient of sum weights*logprobs." placeholder:"OUT.safetensors"`
	Threads int    `help:"CPU threads; 0: all cores."`
}

// Run scores lines on stdin or a file; results go to stdout.
func (c *scoreCmd) Run() (err error) {
	if c.Threads < 0 || c.Threads > 512 {
		return usagef("score: --threads 0 to 512")
	}
	if c.DType != "fp32" && c.Backend == "cpu" {
		return usagef("score: --dtype %s needs --backend cuda or sim; cpu computes in fp32", c.DType)
	}
	dtype, err := kernels.ParseDType(c.DType)
	if err != nil {
		return usageError{err}
	}
	list, err := kernels.Open(c.Threads, kernels.DeviceOptions{Name: c.Backend, DType: dtype})
	if err != nil {
		return err
	}
	be := list[0]
	defer be.Close()
	m, err := model.Load(c.Model, be, model.Options{Train: c.Grad != ""})
	if err != nil {
		return err
	}
	defer m.Close()
	in, err := openInput(c.Input)
	if err != nil {
		return err
	}
	defer in.Close()
	if c.Grad != "" {
		if err := atomicfile.Check(c.Grad); err != nil {
			return fmt.Errorf("score: --grad: %w", err)
		}
	}
	if err := m.Score(in, os.Stdout, model.ScoreOptions{Grad: c.Grad != ""}); err != nil {
		return err
	}
	if c.Grad == "" {
		return nil
	}
	return m.WriteGrads(c.Grad)
}

func openInput(path string) (io.ReadCloser, error) {
	if path == "-" {
		return io.NopCloser(os.Stdin), nil
	}
	f, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, usageError{fmt.Errorf("input: %w", err)}
	}
	return f, err
}
