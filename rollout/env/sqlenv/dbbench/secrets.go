package dbbench

import "harness-s/rollout/env/sqlenv"

var _ sqlenv.Answering = (*Problem)(nil)

// GoldAnswers are the row's labels.
func (p *Problem) GoldAnswers() []string { return p.Labels }
