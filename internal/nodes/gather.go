package nodes

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"time"
)

// Gather waits, as node 0, until all other nodes have joined, and returns their links in order of node. run is a hash of
// what this process is told to do, which the others must share. note is told of progress and may be nil.
func Gather(ctx context.Context, p Place, run string, note func(string)) ([]*Link, error) {
	own, err := executable()
	if err != nil {
		return nil, fmt.Errorf("gather nodes: %w", err)
	}
	l, err := listen(ctx, p)
	if err != nil {
		return nil, fmt.Errorf("gather nodes: %w", err)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, p.Patience, errors.New("they did not come in time"))
	defer cancel()
	g := &gathering{place: p, wanted: hello{Nodes: p.Nodes, Binary: own, Run: run}, note: notes(note), links: make([]*Link, p.Nodes),
		slots: make(chan struct{}, maxGreetings)}
	g.note(fmt.Sprintf("node 0 of %d: waiting at %s for the others", p.Nodes, l.Addr()))
	var open context.Context
	open, g.close = context.WithCancel(ctx)
	defer g.close()
	context.AfterFunc(open, func() { l.Close() })
	g.accept(open, l)
	return g.finish(ctx)
}

// maxGreetings bounds the connections in the middle of a handshake; more wait until one of those is over or timed out.
const maxGreetings = 64

func notes(note func(string)) func(string) {
	if note == nil {
		return func(string) {}
	}
	return note
}

// listen takes the leader's own address where it is a number or localhost, else every address of the machine: what a host
// name stands for differs from machine to machine.
func listen(ctx context.Context, p Place) (net.Listener, error) {
	host, port, err := net.SplitHostPort(p.Leader)
	if err != nil {
		return nil, err
	}
	if net.ParseIP(host) == nil && host != "localhost" {
		host = ""
	}
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", net.JoinHostPort(host, port))
	if err != nil {
		return nil, fmt.Errorf("%w; choose another MASTER_PORT, or the host of node 0 as MASTER_ADDR", err)
	}
	return l, nil
}

// gathering is the leader's side of the handshakes.
type gathering struct {
	place  Place
	wanted hello
	note   func(string)
	slots  chan struct{}
	hands  sync.WaitGroup
	close  func() // ends the handshakes: every node has joined

	mu      sync.Mutex
	links   []*Link // by node; 0 stays nil
	noted   int
	refused string // the latest
}

// accept takes connections until open ends.
func (g *gathering) accept(open context.Context, l net.Listener) {
	defer g.hands.Wait()
	for {
		conn, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // no file handles, or the like
			time.Sleep(50 * time.Millisecond)
			continue
		}
		g.slots <- struct{}{}
		g.hands.Go(func() {
			defer func() { <-g.slots }()
			if err := g.greet(open, conn); err != nil {
				conn.Close()
				if open.Err() == nil {
					g.refuse(conn.RemoteAddr(), err)
				}
			}
		})
	}
}

// greet makes the handshake with whoever called.
func (g *gathering) greet(open context.Context, conn net.Conn) error {
	conn.SetDeadline(time.Now().Add(greetWithin))
	stop := context.AfterFunc(open, func() { conn.Close() })
	defer stop()
	nonce := newNonce()
	if err := say(conn, challenge{protocol, nonce}); err != nil {
		return err
	}
	var h hello
	if err := hearSigned(conn, g.place.Token, followerSays, nonce, &h); err != nil {
		if errors.Is(err, errToken) { // signed with our token, which that side will find wrong as well
			saySigned(conn, g.place.Token, leaderSays, nil, welcome{errToken.Error()})
		}
		return err
	}
	if why := g.objection(h); why != "" {
		saySigned(conn, g.place.Token, leaderSays, h.Nonce, welcome{why})
		return errors.New(why)
	}
	if !stop() {
		return open.Err()
	}
	return g.admit(conn, h)
}

// objection is why a node may not join, or nothing.
func (g *gathering) objection(h hello) string {
	w := g.wanted
	switch {
	case h.Nodes != w.Nodes:
		return fmt.Sprintf("node %d counts %d nodes, node 0 counts %d: set the same NNODES on every node", h.Node, h.Nodes, w.Nodes)
	case h.Node < 1 || h.Node >= w.Nodes:
		return fmt.Sprintf("node %d joins %d nodes: want NODE_RANK from 1 to %d", h.Node, w.Nodes, w.Nodes-1)
	case h.Binary != w.Binary:
		return fmt.Sprintf("node %d runs another build of harness-s than node 0: start the same file on every node", h.Node)
	case h.Run != w.Run:
		return fmt.Sprintf("node %d has another config than node 0: start every node with the same config and the same --set", h.Node)
	}
	return ""
}

// admit makes the connection the node's link, unless it has one that lives.
func (g *gathering) admit(conn net.Conn, h hello) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if l := g.links[h.Node]; l != nil && l.Err() == nil {
		why := fmt.Sprintf("node %d has joined already, as %s: give each node its own NODE_RANK", h.Node, l.Peer)
		saySigned(conn, g.place.Token, leaderSays, h.Nonce, welcome{why})
		return errors.New(why)
	}
	if err := saySigned(conn, g.place.Token, leaderSays, h.Nonce, welcome{}); err != nil {
		return err
	}
	conn.SetDeadline(time.Time{})
	g.links[h.Node] = newLink(conn, fmt.Sprintf("node %d (%s, %s)", h.Node, printable(h.Host), conn.RemoteAddr()))
	g.note(g.links[h.Node].Peer + " joined")
	if len(g.missing()) == 0 {
		g.close()
	}
	return nil
}

// printable keeps what a peer says of itself from being more than a name.
func printable(s string) string {
	s = strings.Map(func(r rune) rune {
		if r > ' ' && r < 0x7f {
			return r
		}
		return -1
	}, s)
	return s[:min(len(s), 64)]
}

// refuse notes a caller that did not join: a few of them, not a flood.
func (g *gathering) refuse(from net.Addr, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.refused = fmt.Sprintf("%s: %v", from, err)
	if g.noted++; g.noted <= 10 {
		g.note("not joined: " + g.refused)
	}
}

// missing are the nodes without a link that lives.
func (g *gathering) missing() []string {
	var out []string
	for i, l := range g.links {
		if i > 0 && (l == nil || l.Err() != nil) {
			out = append(out, fmt.Sprint("node ", i))
		}
	}
	return out
}

// finish gives the links, or says who did not come.
func (g *gathering) finish(ctx context.Context) ([]*Link, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	missing := g.missing()
	if len(missing) == 0 {
		return slices.Clone(g.links[1:]), nil
	}
	err := fmt.Errorf("gather nodes: %s not here: %w", strings.Join(missing, ", "), context.Cause(ctx))
	if g.refused != "" {
		err = fmt.Errorf("%w (last refused: %s)", err, g.refused)
	}
	for _, l := range g.links {
		if l != nil {
			l.Break(err)
		}
	}
	return nil, err
}
