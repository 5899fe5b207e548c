package nodes

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"
)

// Join connects, as another node, to node 0, which may start later. What the leader says against it is an error at once.
func Join(ctx context.Context, p Place, run string, note func(string)) (*Link, error) {
	own, err := executable()
	if err != nil {
		return nil, fmt.Errorf("join node 0: %w", err)
	}
	host, _ := os.Hostname() // only a name in messages
	h := hello{Node: p.Node, Nodes: p.Nodes, Host: host, Binary: own, Run: run}
	ctx, cancel := context.WithTimeoutCause(ctx, p.Patience, errors.New("it did not answer in time"))
	defer cancel()
	var last error
	wait := retry{note: notes(note), what: fmt.Sprintf("node %d of %d: waiting for node 0 at %s", p.Node, p.Nodes, p.Leader)}
	for wait.next(ctx, last) {
		var l *Link
		if l, last = joinOnce(ctx, p, h); last == nil {
			wait.note(fmt.Sprintf("node %d of %d: joined %s", p.Node, p.Nodes, l.Peer))
			return l, nil
		}
		if errors.Is(last, errRefused) {
			return nil, fmt.Errorf("join node 0 at %s: %w", p.Leader, last)
		}
	}
	err = fmt.Errorf("join node 0 at %s: %w", p.Leader, context.Cause(ctx))
	if last != nil {
		err = fmt.Errorf("%w (last try: %v)", err, last)
	}
	return nil, err
}

// errRefused marks an answer of the leader that trying again would not change.
var errRefused = errors.New("refused")

// retry paces tries.
type retry struct {
	note  func(string)
	what  string
	pause time.Duration
	noted time.Time
}

const (
	firstPause = 100 * time.Millisecond
	mostPause  = 3 * time.Second
	noteEvery  = 30 * time.Second
)

// next waits before another try; false when ctx has ended.
func (r *retry) next(ctx context.Context, last error) bool {
	if r.pause == 0 {
		r.pause = firstPause
		return ctx.Err() == nil
	}
	if time.Since(r.noted) > noteEvery {
		r.noted = time.Now()
		r.note(fmt.Sprintf("%s (%v)", r.what, last))
	}
	select {
	case <-ctx.Done():
		return false
	case <-time.After(r.pause):
	}
	r.pause = min(2*r.pause, mostPause)
	return true
}

func joinOnce(ctx context.Context, p Place, h hello) (*Link, error) {
	var d net.Dialer
	dial, cancel := context.WithTimeout(ctx, greetWithin)
	defer cancel()
	conn, err := d.DialContext(dial, "tcp", p.Leader)
	if err != nil {
		return nil, err
	}
	conn.SetDeadline(time.Now().Add(greetWithin))
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	if err := introduce(conn, p.Token, h); err != nil {
		conn.Close()
		return nil, err
	}
	conn.SetDeadline(time.Time{})
	return newLink(conn, fmt.Sprintf("node 0 (%s)", conn.RemoteAddr())), nil
}

// introduce is the other node's side of the handshake.
func introduce(conn net.Conn, token string, h hello) error {
	var c challenge
	if err := hear(conn, &c); err != nil {
		return fmt.Errorf("no greeting: %w", err)
	}
	if c.Protocol != protocol {
		return fmt.Errorf("%w: it speaks %.40q, this build %q: start the same file on every node", errRefused, c.Protocol, protocol)
	}
	h.Nonce = newNonce()
	if err := saySigned(conn, token, followerSays, c.Nonce, h); err != nil {
		return err
	}
	var w welcome
	if err := hearSigned(conn, token, leaderSays, h.Nonce, &w); err != nil {
		if errors.Is(err, errToken) {
			return fmt.Errorf("%w: %w", errRefused, err)
		}
		return err
	}
	if w.Refused != "" {
		return fmt.Errorf("%w: %s", errRefused, w.Refused)
	}
	return nil
}
