// Package vllm is the client of policy servers that speak vLLM's HTTP API, the embedded one included: token ids in,
// token ids and log-probs out, and the control of weights.
//
// Start at Dial and Client.Generate. Every reply is checked before it is believed; one that fails a check is an
// error wrapping rollout.ErrServer and so never becomes a training row.
package vllm

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
)

// Options say where the servers are. Zero values take the defaults named.
type Options struct {
	URLs         []string      // base URLs; all serve the same model
	Model        string        // the name served; default: the first of /v1/models
	APIKey       string        // sent as a bearer token, if set
	Attempts     int           // tries of one generation, over all servers; 4
	AdminTimeout time.Duration // of one control call; 5 minutes
	PauseMode    string        // what Sync does with requests in flight: keep | wait | abort; keep
	LoadDir      string        // weights the servers started with: what Sync falls back to when a reload fails
}

// Client talks to one or more servers. Its methods may be called from any goroutine.
type Client struct {
	opt     Options
	http    *http.Client // generation
	admin   *http.Client // control: its own connections, so that it never queues behind generations
	servers []*server
	sticky  affinity
	salt    atomic.Uint64

	syncing sync.Mutex // one weight update at a time
	good    string     // folder of the last weights known to load; guarded by syncing
}

// server is one base URL and what is known of it.
type server struct {
	base        string
	version     string // of the software
	maxModelLen int
	inFlight    atomic.Int64
	completions atomic.Bool  // /inference/v1/generate is not there: use /v1/completions
	weights     atomic.Int64 // version last set, -1 = none
	downUntil   atomic.Int64 // unix nanoseconds: not picked before, if there is another
	broken      atomic.Bool  // its weights are not to be used
}

const (
	dialTimeout = 5 * time.Second
	idleTimeout = 3 * time.Second // vLLM's server closes idle connections after 5 s
	maxReply    = 256 << 20       // bytes of one reply
	downFor     = 2 * time.Second
)

// Dial checks that every server is healthy and serves the model.
func Dial(ctx context.Context, opt Options) (*Client, error) {
	if len(opt.URLs) == 0 {
		return nil, errors.New("vllm client: no server URL")
	}
	if opt.Attempts <= 0 {
		opt.Attempts = 4
	}
	if opt.AdminTimeout <= 0 {
		opt.AdminTimeout = 5 * time.Minute
	}
	if opt.PauseMode == "" {
		opt.PauseMode = "keep"
	}
	c := &Client{opt: opt, http: newHTTP(), admin: newHTTP(), good: opt.LoadDir}
	for _, raw := range opt.URLs {
		u, err := url.Parse(raw)
		if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" {
			return nil, fmt.Errorf("vllm client: %q is not a server URL: write http://host:port", raw)
		}
		s := &server{base: strings.TrimRight(raw, "/")}
		s.weights.Store(-1)
		c.servers = append(c.servers, s)
	}
	if err := c.each(ctx, c.greet); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

func newHTTP() *http.Client {
	return &http.Client{
		Transport: &http.Transport{
			DialContext:         (&net.Dialer{Timeout: dialTimeout}).DialContext,
			MaxIdleConns:        1024,
			MaxIdleConnsPerHost: 1024,
			IdleConnTimeout:     idleTimeout,
			TLSHandshakeTimeout: dialTimeout,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// greet learns a server's version and model.
func (c *Client) greet(ctx context.Context, s *server) error {
	if err := c.health(ctx, s); err != nil {
		return err
	}
	var v struct{ Version string }
	if err := c.control(ctx, s, "GET", "/version", nil, &v); err != nil {
		return err
	}
	s.version = v.Version
	list, err := c.models(ctx, s)
	if err != nil {
		return err
	}
	for _, m := range list {
		if c.opt.Model == "" && len(c.servers) == 1 {
			c.opt.Model = m.ID
		}
		if m.ID == c.opt.Model {
			s.maxModelLen = m.MaxModelLen
			return nil
		}
	}
	if c.opt.Model == "" {
		return fmt.Errorf("vllm client: %s: name the model: there are several servers", s.base)
	}
	return fmt.Errorf("vllm client: %s does not serve model %q", s.base, c.opt.Model)
}

// Close drops idle connections.
func (c *Client) Close() {
	c.http.CloseIdleConnections()
	c.admin.CloseIdleConnections()
}

// ModelName is the name the servers serve.
func (c *Client) ModelName() string { return c.opt.Model }

// MaxModelLen is the longest context every server takes, 0 when they do not say.
func (c *Client) MaxModelLen() int {
	n := c.servers[0].maxModelLen
	for _, s := range c.servers {
		n = min(n, s.maxModelLen)
	}
	return n
}

// each runs f for every server at once.
func (c *Client) each(ctx context.Context, f func(context.Context, *server) error) error {
	g, ctx := errgroup.WithContext(ctx)
	for _, s := range c.servers {
		g.Go(func() error { return f(ctx, s) })
	}
	return g.Wait()
}

// affinity remembers which server a rollout's prefix lies on, for the most recent rollouts: two generations of
// bounded size, the older forgotten when the newer is full.
type affinity struct {
	mu       sync.Mutex
	new, old map[string]*server
}

const affinitySize = 1 << 14

func (a *affinity) get(id string) *server {
	a.mu.Lock()
	defer a.mu.Unlock()
	if s := a.new[id]; s != nil {
		return s
	}
	return a.old[id]
}

func (a *affinity) set(id string, s *server) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.new == nil || len(a.new) >= affinitySize {
		a.old, a.new = a.new, map[string]*server{}
	}
	a.new[id] = s
}

// pick is the server that has the rollout's prefix, or else the one with the fewest requests in flight. Servers
// that just failed are avoided, broken ones never used.
func (c *Client) pick(rolloutID string, now time.Time) (*server, error) {
	usable := func(s *server) bool { return !s.broken.Load() && s.downUntil.Load() <= now.UnixNano() }
	if len(c.servers) > 1 {
		if s := c.sticky.get(rolloutID); s != nil && usable(s) {
			return s, nil
		}
	}
	var best *server
	for _, s := range c.servers {
		switch {
		case s.broken.Load():
		case best == nil,
			usable(s) && !usable(best),
			usable(s) == usable(best) && s.inFlight.Load() < best.inFlight.Load():
			best = s
		}
	}
	if best == nil {
		return nil, serverError("no server has usable weights: a reload failed on each; restart them")
	}
	if len(c.servers) > 1 && rolloutID != "" {
		c.sticky.set(rolloutID, best)
	}
	return best, nil
}
