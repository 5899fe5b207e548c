package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"strconv"

	"harness-s/trainer/report"
)

type viewCmd struct {
	Dir  string `arg:"" help:"Run folder."`
	Port int    `help:"Port on the loopback address; 0: any free one." default:"8080"`
}

// Run serves until interrupted, which is its normal end.
func (c *viewCmd) Run(ctx context.Context) error {
	addr := net.JoinHostPort("127.0.0.1", strconv.Itoa(c.Port))
	return report.Serve(ctx, c.Dir, addr, func(addr string) {
		fmt.Fprintf(os.Stderr, "viewing %s at http://%s (Ctrl-C ends)\n", c.Dir, addr)
	})
}
