package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"time"

	"harness-s/bench"
	"harness-s/internal/atomicfile"
	"harness-s/kernels"
)

type benchCmd struct {
	What    string        `arg:"" help:"kernels, step, decode or serve." enum:"kernels,step,decode,serve"`
	Threads int           `help:"CPU threads; 0: all cores."`
	Repeat  int           `help:"Timed runs after the warm-up." default:"5"`
	Model   string        `help:"kernels, step: predict for a device without having it: a100, h100, h200, b200, l40s, rtx4090, rtx5090." placeholder:"DEVICE"`
	Backend string        `help:"kernels, step: cpu, cuda, or sim to rehearse cuda." default:"cpu" enum:"cpu,cuda,sim"`
	Size    []string      `help:"With --model or a device: sizes of the policy: 0.8b, 4b, 9b, tiny." default:"0.8b,4b,9b" sep:","`
	Tokens  int           `help:"With --model or a device: tokens of a batch." default:"32768"`
	Ranks   int           `help:"step with --model or a device: the model is divided over so many devices, of which one works." default:"1"`
	Dtype   string        `help:"On a device: bf16 or fp32." default:"bf16" enum:"bf16,fp32"`
	Limit   time.Duration `help:"On a device: what has not begun by then is left out." placeholder:"60s"`
	JSON    string        `help:"Write JSON to a file; - for stdout." placeholder:"FILE|-"`
}

// Run measures or predicts and prints one line a result. With --json a file holds what is there so far from the first
// result on.
func (c *benchCmd) Run(ctx context.Context) error {
	if c.Repeat < 1 || c.Repeat > 1000 || c.Threads < 0 || c.Threads > 1024 || c.Ranks < 1 || c.Ranks > 1024 {
		return usagef("bench: --repeat 1 to 1000, --threads 0 to 1024, --ranks 1 to 1024")
	}
	onDevice := c.Model != "" || c.Backend != "cpu"
	if onDevice && c.What != "kernels" && c.What != "step" {
		return usagef("bench %s: there is no device form of it; kernels and step have one", c.What)
	}
	if c.Model != "" && c.Backend != "cpu" {
		return usagef("bench: --model predicts, --backend measures: give one of them")
	}
	switch {
	case c.Model != "":
		return c.predict()
	case onDevice:
		return c.measure()
	}
	results, err := bench.Run(ctx, c.What, bench.Options{Threads: c.Threads, Repeat: c.Repeat})
	if err != nil {
		return err
	}
	for _, r := range results {
		fmt.Fprintln(os.Stderr, r)
	}
	// One result is one object, as scripts expect; kernels give a list.
	if len(results) == 1 {
		return c.write(results[0])
	}
	return c.write(results)
}

func (c *benchCmd) options(size string) (bench.DeviceOptions, error) {
	dtype, err := kernels.ParseDType(c.Dtype)
	return bench.DeviceOptions{Backend: c.Backend, Size: size, Tokens: c.Tokens, Ranks: c.Ranks, Repeat: c.Repeat, Limit: c.Limit, DType: dtype}, err
}

func (c *benchCmd) predict() error {
	d, err := bench.ModelDeviceByKey(c.Model)
	if err != nil {
		return usageError{err}
	}
	fmt.Fprintf(os.Stderr, "PREDICTION for %s (%.0f TFLOP/s bf16, %.0f GB/s): what the host code would launch, and the time that the data sheet allows at best; nothing has run\n",
		d.Name, d.BF16/1e12, d.Bandwidth/1e9)
	var all []any
	for _, size := range c.Size {
		o, err := c.options(size)
		if err != nil {
			return err
		}
		if c.What == "step" {
			r, err := bench.PredictStep(d, o)
			if err != nil {
				return err
			}
			fmt.Fprintln(os.Stderr, r)
			all = append(all, r)
			continue
		}
		list, err := bench.PredictKernels(d, size, c.Tokens)
		if err != nil {
			return err
		}
		fmt.Fprintf(os.Stderr, "\n%s\n%s\n", size, bench.PredictionHeader)
		for _, r := range list {
			fmt.Fprintln(os.Stderr, r)
			all = append(all, r)
		}
	}
	return c.write(all)
}

func (c *benchCmd) measure() error {
	var all []bench.Measurement
	emit := func(m bench.Measurement) error {
		fmt.Fprintln(os.Stderr, m)
		all = append(all, m)
		if c.JSON == "-" {
			return nil
		}
		return c.write(all)
	}
	for _, size := range c.Size {
		o, err := c.options(size)
		if err != nil {
			return err
		}
		if c.What == "kernels" {
			err = bench.MeasureKernels(o, emit)
		} else {
			var m bench.Measurement
			if m, err = bench.MeasureStep(o); err == nil {
				err = emit(m)
			}
		}
		if err != nil {
			return err
		}
	}
	if c.JSON == "-" {
		return c.write(all)
	}
	return nil
}

// write puts results where --json says.
func (c *benchCmd) write(v any) error {
	switch c.JSON {
	case "":
		return nil
	case "-":
		return printJSON(os.Stdout, v)
	}
	data, err := json.MarshalIndent(v, "", " ")
	if err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	return atomicfile.Write(c.JSON, append(data, '\n'))
}
