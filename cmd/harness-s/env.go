package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"

	"harness-s/rollout/env/sqlenv/dbbench"
)

type envCmd struct {
	Check envCheckCmd `cmd:"" help:"Replay gold solutions, no-ops and spoiled answers."`
	Grade envGradeCmd `cmd:"" help:"Grade answers given as JSON lines."`
}

type envCheckCmd struct {
	Env  string `help:"Environment." enum:"dbbench" default:"dbbench"`
	Data string `help:"Official rows (JSON lines)." required:"" placeholder:"FILE"`
	JSON bool   `help:"Machine-readable output on stdout."`
}

// Run prints how the rows fare; rows whose gold fails are listed, which is a finding, not a failure of the command.
func (c *envCheckCmd) Run(ctx context.Context) error {
	report, err := dbbench.Check(ctx, c.Data)
	if err != nil {
		return err
	}
	if c.JSON {
		return printJSON(os.Stdout, report)
	}
	fmt.Fprintf(os.Stderr, "tier sqlite: %d rows, gold passes %d, no-op %d, spoiled %d; rows whose gold fails: %v\n",
		report.Rows, report.GoldPass, report.NoopPass, report.SpoiledPass, report.FailedRows)
	return nil
}

type envGradeCmd struct {
	Env     string `help:"Environment." enum:"dbbench" default:"dbbench"`
	Data    string `help:"Official rows (JSON lines)." required:"" placeholder:"FILE"`
	Answers string `help:"JSON lines {\"index\",\"sql\",\"answer\"}; - for stdin." required:"" placeholder:"FILE"`
	JSON    bool   `help:"Accepted for uniformity: the output is always JSON lines."`
}

// Run grades line by line onto stdout.
func (c *envGradeCmd) Run(ctx context.Context) error {
	in, err := openInput(c.Answers)
	if err != nil {
		return err
	}
	defer in.Close()
	out := bufio.NewWriter(os.Stdout)
	err = dbbench.Grade(ctx, c.Data, in, out)
	return errors.Join(err, out.Flush())
}
