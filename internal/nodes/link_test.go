package nodes

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"
	"time"
)

// pair joins node 1 to node 0.
func pair(t *testing.T) (leader, follower *Link, p Place) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p = Place{Nodes: 2, Leader: l.Addr().String(), Token: "t", Patience: time.Minute}
	l.Close()
	type joined struct {
		*Link
		error
	}
	joins := make(chan joined)
	go func() {
		p := p
		p.Node = 1
		f, err := Join(t.Context(), p, "run", nil)
		joins <- joined{f, err}
	}()
	links, err := Gather(t.Context(), p, "run", nil)
	j := <-joins
	if err != nil || j.error != nil {
		t.Fatal(err, j.error)
	}
	t.Cleanup(func() { links[0].Close(); j.Close() })
	return links[0], j.Link, p
}

func TestMessages(t *testing.T) {
	leader, follower, _ := pair(t)
	type message struct {
		Text string
		V    []float32
	}
	go func() {
		var m message
		for follower.Receive(&m) == nil {
			m.Text = strings.ToUpper(m.Text)
			follower.Send(m)
		}
	}()
	for _, n := range []int{0, 1, 1 << 20} {
		var got message
		if err := leader.Send(message{"a", make([]float32, n)}); err != nil {
			t.Fatal(err)
		}
		if err := leader.Receive(&got); err != nil || got.Text != "A" || len(got.V) != n {
			t.Fatalf("%q, %d values, %v", got.Text, len(got.V), err)
		}
	}
}

// TestBreak: what was sent before the end arrives, then the reason does.
func TestBreak(t *testing.T) {
	leader, follower, _ := pair(t)
	if err := follower.Send("last words"); err != nil {
		t.Fatal(err)
	}
	follower.Break(errors.New("no memory"))
	<-leader.Broken()
	var text string
	if err := leader.Receive(&text); err != nil || text != "last words" {
		t.Errorf("%q, %v", text, err)
	}
	if err := leader.Receive(&text); err == nil || !strings.Contains(err.Error(), "node 1 (") || !strings.Contains(err.Error(), "no memory") {
		t.Errorf("after the end: %v", err)
	}
	if err := leader.Send("more"); err == nil {
		t.Error("a broken link sends")
	}
}

// TestRefused: what a node has wrong it is told by node 0 at once; others cannot keep node 0 from going on.
func TestRefused(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := Place{Nodes: 3, Leader: l.Addr().String(), Token: "t", Patience: time.Minute}
	l.Close()
	ctx, cancel := context.WithCancel(t.Context())
	gathered := make(chan error, 1)
	go func() {
		_, err := Gather(ctx, p, "run", nil)
		gathered <- err
	}()
	join := func(change func(p *Place), run string) (*Link, error) {
		p := p
		p.Node = 1
		change(&p)
		return Join(t.Context(), p, run, nil)
	}
	first, err := join(func(*Place) {}, "run")
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	for _, c := range []struct {
		says   string
		run    string
		change func(p *Place)
	}{
		{"joined already", "run", func(*Place) {}},
		{"another config", "other", func(p *Place) { p.Node = 2 }},
		{"NNODES", "run", func(p *Place) { p.Nodes, p.Node = 4, 2 }},
		{"NODE_RANK", "run", func(p *Place) { p.Node = 3 }},
		{TokenVariable, "run", func(p *Place) { p.Token, p.Node = "guess", 2 }},
	} {
		if _, err := join(c.change, c.run); !errors.Is(err, errRefused) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("want refused with %q: %v", c.says, err)
		}
	}
	if conn, err := net.Dial("tcp", p.Leader); err == nil { // a stranger
		conn.Write([]byte("GET / HTTP/1.1\r\n\r\n"))
		conn.Close()
	}
	cancel()
	if err := <-gathered; !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "node 2 not here") {
		t.Errorf("node 0: %v", err)
	}
}
