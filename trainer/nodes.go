package trainer

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"time"

	"harness-s/internal/nodes"
	"harness-s/internal/strictyaml"
	"harness-s/model"
)

// runHash is what all nodes of a run must have in common: the config, before a run folder changes it for the leader.
func runHash(c Config) string {
	sum := sha256.Sum256(strictyaml.Encode(c))
	return hex.EncodeToString(sum[:])
}

// ranks is the number of devices that train, on all nodes.
func (r *run) ranks() int { return r.cfg.Devices * max(1, r.opts.Nodes.Nodes) }

// others gives what waits for the run's other nodes; nil where there are none.
func (r *run) others(hash string) func(context.Context) ([]*nodes.Link, error) {
	if !r.opts.Nodes.Several() {
		return nil
	}
	return func(ctx context.Context) ([]*nodes.Link, error) {
		return nodes.Gather(ctx, r.opts.Nodes, hash, r.progress.note)
	}
}

// leaveWithin is how long a node that is interrupted leaves the leader, which may be interrupted as well, to end the run in
// order: less than the half minute that schedulers give.
const leaveWithin = 20 * time.Second

// Follow takes part, as another node than the first, in the run that Train leads there, until that ends. Its devices do what
// the leader asks for; all else, the run folder too, is the leader's. It returns ErrInterrupted when ctx ends.
func Follow(ctx context.Context, c Config, place nodes.Place, out io.Writer) error {
	me := fmt.Sprintf("node %d of %d", place.Node, place.Nodes)
	note := func(line string) { fmt.Fprintln(out, line) }
	link, err := nodes.Join(ctx, place, runHash(c), note)
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() {
		note(fmt.Sprintf("%s: interrupted; node 0 has %s to end the run", me, leaveWithin))
		select {
		case <-link.Broken():
		case <-time.After(leaveWithin):
			link.Break(errors.New("interrupted"))
		}
	})
	defer stop()
	err = model.Follow(link)
	if ctx.Err() != nil {
		return fmt.Errorf("%s: %w", me, ErrInterrupted)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", me, err)
	}
	note(me + ": node 0 ended the run")
	return nil
}
