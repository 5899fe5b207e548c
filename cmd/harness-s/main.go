// Command harness-s trains one policy with rescue by sibling harnesses, and carries the tools around it. A file a
// subcommand; the work is done in the packages they name.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/alecthomas/kong"
)

// Exit codes: what other tools rely on.
const (
	exitFailed      = 1
	exitUsage       = 2
	exitInterrupted = 130
)

// cli is every subcommand.
type cli struct {
	Train     trainCmd     `cmd:"" help:"Train a policy: the main job."`
	Eval      evalCmd      `cmd:"" help:"Evaluate a policy under H0, siblings or the router."`
	Evolve    evolveCmd    `cmd:"" help:"Make a pool of sibling harnesses from the base harness."`
	Compare   compareCmd   `cmd:"" help:"The paper's controls side by side: arms of one run config, each under several seeds."`
	Route     routeCmd     `cmd:"" help:"Explain the router's choice for one task."`
	Serve     serveCmd     `cmd:"" help:"Serve a policy with vLLM's HTTP API."`
	Score     scoreCmd     `cmd:"" help:"Log-probs, entropies and gradients of given tokens."`
	Tokenize  tokenizeCmd  `cmd:"" help:"Text to token ids and back: stdin has JSON lines {\"text\"} or {\"ids\"}."`
	Pool      poolCmd      `cmd:"" help:"Harness pools."`
	Env       envCmd       `cmd:"" help:"Environments: check gold solutions, grade answers."`
	Bench     benchCmd     `cmd:"" help:"Benchmarks: kernels, step, decode, serve."`
	Plan      planCmd      `cmd:"" help:"Memory and time of a config on a device."`
	View      viewCmd      `cmd:"" help:"Local pages over a run folder."`
	Doctor    doctorCmd    `cmd:"" help:"What is found, what is missing, how to get it."`
	Warmstart warmstartCmd `cmd:"" help:"Make the embedded policy by behaviour cloning."`
}

// usageError marks wrong use (exit 2) as opposed to failed work (exit 1).
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

func usagef(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

func main() { os.Exit(run(os.Args[1:])) }

func run(args []string) int {
	var c cli
	parser, err := kong.New(&c,
		kong.Name("harness-s"),
		kong.Description("Learning from sibling harnesses: GRPO with rescue, on a CPU or on GPUs."),
		kong.UsageOnError(),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true}))
	if err != nil {
		fmt.Fprintln(os.Stderr, "harness-s:", err)
		return exitFailed
	}
	k, err := parser.Parse(args)
	if err != nil {
		fmt.Fprintln(os.Stderr, "harness-s:", err)
		return exitUsage
	}
	// A command whose Run takes a context ends in order when interrupted; any other is ended by the signal itself. So is
	// the former by a second signal.
	ctx, stop := context.Background(), func() {}
	defer func() { stop() }()
	err = k.BindToProvider(func() (context.Context, error) {
		ctx, stop = signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
		context.AfterFunc(ctx, stop)
		return ctx, nil
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, "harness-s:", err)
		return exitFailed
	}
	err = k.Run()
	return exitCode(ctx, err)
}

func exitCode(ctx context.Context, err error) int {
	if err == nil {
		return 0
	}
	fmt.Fprintln(os.Stderr, "harness-s:", err)
	var usage usageError
	switch {
	case errors.As(err, &usage):
		return exitUsage
	case ctx.Err() != nil && errors.Is(err, context.Canceled):
		return exitInterrupted
	default:
		return exitFailed
	}
}
