package trainer

import (
	"context"
	"errors"
)

// Build wires the real parts.
func Build(ctx context.Context, c Config, from Sources) (Parts, error) {
	return Parts{}, errors.New("not wired yet")
}
