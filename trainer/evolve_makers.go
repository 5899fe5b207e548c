package trainer

import (
	"fmt"

	"harness-s/router/evolve"
	"harness-s/router/evolve/sqlrepair"
)

// makers are who analyses and edits, and what counts their requests.
type makers struct {
	analyst evolve.Analyst
	editor  evolve.Editor
	meter   evolve.Meter // nil: they make none
}

// newMakers wires the makers that a config names.
func newMakers(c EvolveConfig) (makers, error) {
	if c.Analyst == MakerLLM || c.Editor == MakerLLM {
		return makers{}, fmt.Errorf("evolve: analyst %s, editor %s: not wired yet", c.Analyst, c.Editor)
	}
	return makers{analyst: sqlrepair.Analyst{}, editor: sqlrepair.Editor{}}, nil
}
