package model

import (
	"bytes"
	"fmt"
	"math"
	"path/filepath"
	"strings"
	"time"

	"harness-s/internal/nodes"
	"harness-s/kernels"
)

// OpenGroup opens the devices of this node and of others, which follow (Follow), and makes them ranks that work together:
// those of this node first, then the others' in their order. Load comes next.
func OpenGroup(s Setup, others []*nodes.Link) (*Group, error) {
	g := &Group{others: others, bytes: make([]int64, len(others)+1)}
	if err := g.start(s); err != nil {
		g.Close() // the error is the one to tell
		return nil, err
	}
	return g, nil
}

func (g *Group) start(s Setup) error {
	if _, err := g.all(func(_, _ int) command { return command{Op: opOpen, Setup: s} }); err != nil {
		return err
	}
	g.world = len(g.ranks) * (1 + len(g.others))
	if g.world == 1 {
		return nil
	}
	id, err := kernels.NewCommID(s.Backend)
	if err != nil {
		return err
	}
	_, err = g.all(func(first, _ int) command { return command{Op: opJoin, ID: id, First: first, World: g.world} })
	return err
}

// Load loads a Hugging Face folder onto all ranks; see the function Load. Every node must see it under the same path.
func (g *Group) Load(dir string) error { return g.readEverywhere(opLoad, dir) }

// readEverywhere lets every node read a path, and makes sure that they found the same there.
func (g *Group) readEverywhere(o operation, path string) error {
	if len(g.others) > 0 {
		var err error
		if path, err = filepath.Abs(path); err != nil {
			return err
		}
	}
	replies, err := g.all(func(_, _ int) command { return command{Op: o, Path: path} })
	if err != nil {
		return err
	}
	for i, r := range replies {
		if !bytes.Equal(r.Digest, replies[0].Digest) {
			return g.end(fmt.Errorf("%s finds other files at %s than this node; every node must see the same", g.others[i-1].Peer, path))
		}
	}
	return nil
}

// outcome is one node's answer.
type outcome struct {
	node int // 0: this one
	reply
	err error
}

// all runs an operation on every node at the same time. build gives a node's command by the rank of its first device and the
// number of its devices. The first error ends the group: every node stops what it is at, and nothing more can be done.
func (g *Group) all(build func(first, n int) command) ([]reply, error) {
	if g.err != nil {
		return nil, g.err
	}
	n := len(g.ranks)
	if len(g.others) == 0 {
		c := build(0, n)
		r, err := g.execute(&c)
		return []reply{r}, err
	}
	ends := make(chan outcome, 1+len(g.others))
	for i, l := range g.others {
		c := build((i+1)*n, n)
		go func() { ends <- ask(i+1, l, &c) }()
	}
	go func() {
		c := build(0, n)
		r, err := g.execute(&c)
		ends <- outcome{0, r, err}
	}()
	replies := make([]reply, cap(ends))
	here := false
	for range replies {
		o := <-ends
		here = here || o.node == 0
		if o.err != nil {
			err := g.end(g.cause(o.err))
			g.lost = !here && !returned(ends)
			return nil, err
		}
		replies[o.node], g.bytes[o.node] = o.reply, o.Bytes
	}
	return replies, nil
}

func ask(node int, l *nodes.Link, c *command) (o outcome) {
	o.node = node
	if o.err = l.Send(c); o.err != nil {
		return o
	}
	if o.err = l.Receive(&o.reply); o.err == nil && o.Err != "" {
		o.err = fmt.Errorf("%s: %s", l.Peer, o.Err)
	}
	return o
}

const (
	// causeWithin is how long an error waits for the news that a node is gone.
	causeWithin = time.Second
	// returnWithin is how long a node waits for its own devices after it told them to stop.
	returnWithin = 30 * time.Second
)

// cause is the node that is gone, where there is one: the errors of those that miss it may come first.
func (g *Group) cause(err error) error {
	for deadline := time.Now().Add(causeWithin); time.Now().Before(deadline); time.Sleep(causeWithin / 50) {
		for _, l := range g.others {
			if l.Err() != nil {
				return l.Err()
			}
		}
	}
	return err
}

// end stops every node. The error is the one that every later operation returns.
func (g *Group) end(err error) error {
	g.err = err
	g.fail(err)
	for _, l := range g.others {
		l.Break(err)
	}
	return err
}

// returned waits for this node's own part.
func returned(ends <-chan outcome) bool {
	limit := time.After(returnWithin)
	for {
		select {
		case o := <-ends:
			if o.node == 0 {
				return true
			}
		case <-limit:
			return false
		}
	}
}

// Close ends the other nodes' part and frees this one's.
func (g *Group) Close() error {
	switch {
	case g.lost: // a call into the device library does not come back: the end of the process frees what it uses
		return nil
	case g.err != nil || len(g.others) == 0:
		return g.close()
	}
	_, err := g.all(func(_, _ int) command { return command{Op: opEnd} })
	for _, l := range g.others {
		l.Close()
	}
	g.others = nil
	return err
}

// Follow does, as another node than the first, what the leader at the other end asks for. It returns nil when the leader
// ends the run, and an error when the run breaks, here or elsewhere; nothing is left behind.
func Follow(l *nodes.Link) error {
	var n node
	defer l.Close()
	for {
		var c command
		if err := l.Receive(&c); err != nil {
			n.fail(err)
			n.close()
			return err
		}
		o, err := n.follow(l, &c)
		if err != nil {
			return err
		}
		if o.err != nil {
			o.Err = o.err.Error()
		}
		if err := l.Send(o.reply); err != nil && o.err == nil {
			continue // Receive tells
		}
		if c.Op == opEnd {
			return o.err
		}
		if o.err != nil { // the leader ends the run
			<-l.Broken()
			n.fail(o.err)
			n.close()
			return withReason(l.Err(), o.err)
		}
	}
}

// withReason adds what went wrong here to the reason that the leader gave, unless that is it.
func withReason(leader, here error) error {
	if strings.Contains(leader.Error(), here.Error()) {
		return leader
	}
	return fmt.Errorf("%w (here: %w)", leader, here)
}

// follow does one command, and stops it when the leader is gone.
func (n *node) follow(l *nodes.Link, c *command) (outcome, error) {
	ends := make(chan outcome, 1)
	go func() {
		r, err := n.execute(c)
		ends <- outcome{0, r, err}
	}()
	select {
	case o := <-ends:
		return o, nil
	case <-l.Broken():
	}
	n.fail(l.Err())
	if returned(ends) {
		n.close()
	}
	return outcome{}, l.Err()
}

// sameNorm checks that all nodes computed the same number: they differ only when they have different gradients or code.
func (g *Group) sameNorm(replies []reply) error {
	for i, r := range replies {
		if math.Float64bits(r.Norm) != math.Float64bits(replies[0].Norm) || r.Bad != replies[0].Bad {
			return g.end(fmt.Errorf("the nodes disagree about the gradient's norm: %g here, %g on %s", replies[0].Norm, r.Norm, g.others[i-1].Peer))
		}
	}
	return nil
}
