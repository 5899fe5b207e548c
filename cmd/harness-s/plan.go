package main

import "context"

type planCmd struct {
	Config string `arg:"" help:"Run config."`
}

// Run prints the plan.
func (c *planCmd) Run(context.Context) error { return usagef("plan: later in this change") }
