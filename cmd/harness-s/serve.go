package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"strconv"

	"harness-s/rollout/policy"
)

type serveCmd struct {
	Model    string `help:"Hugging Face folder." required:"" placeholder:"DIR"`
	Port     int    `help:"Port; 0: any free one." default:"8000"`
	Host     string `help:"Address to listen on." default:"127.0.0.1"`
	Name     string `help:"Model name on the wire. Default: the folder's name."`
	Threads  int    `help:"CPU threads; 0: all cores."`
	MaxLen   int    `name:"max-model-len" help:"Tokens of one sequence; 0: the model's own, at most 32768."`
	MaxSeqs  int    `name:"max-num-seqs" help:"Sequences in one step." default:"64"`
	Cache    int    `name:"cache-tokens" help:"Tokens cached over all sequences and kept prefixes." default:"131072"`
	Dev      bool   `help:"Serve the routes that control weights and caches (/pause, /collective_rpc, ...). For loopback only."`
	Thinking bool   `help:"Chat turns think unless the request says otherwise."`
}

// Run serves until interrupted, which is its normal end.
func (c *serveCmd) Run(ctx context.Context) error {
	if c.Port < 0 || c.Port > 65535 || c.MaxLen < 0 || c.MaxSeqs < 1 || c.Cache < 1 || c.Threads < 0 {
		return usagef("serve: --port 0 to 65535, --max-num-seqs and --cache-tokens at least 1")
	}
	if c.Dev && !net.ParseIP(c.Host).IsLoopback() {
		return usagef("serve: --dev would let anybody on %s replace the weights; use it on 127.0.0.1", c.Host)
	}
	s, err := policy.Open(c.Model, policy.OpenOptions{
		Name: c.Name, Threads: c.Threads, MaxModelLen: c.MaxLen, CacheTokens: c.Cache, MaxSeqs: c.MaxSeqs,
		Dev: c.Dev, Thinking: c.Thinking, Log: os.Stderr,
	})
	if err != nil {
		return err
	}
	return s.Serve(ctx, net.JoinHostPort(c.Host, strconv.Itoa(c.Port)), func(url string) {
		fmt.Fprintf(os.Stderr, "serving %s at %s (Ctrl-C ends)\n", c.Model, url)
	})
}
