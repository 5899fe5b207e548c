package llm

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
	"time"
)

const (
	defaultTimeout     = 2 * time.Minute
	defaultMaxTokens   = 2048
	defaultConcurrency = 4
	dialTimeout        = 10 * time.Second
	idleTimeout        = 30 * time.Second
	maxRequest         = 4 << 20 // bytes of all messages of one request
)

// Client asks one endpoint. Its methods may be called from any goroutine.
type Client struct {
	opt   Options
	key   string
	http  *http.Client
	slots chan struct{}

	mu      sync.Mutex
	dialect dialect // what the server takes, as far as is known
	count   Counters
}

// New checks the options and reads the key. It sends nothing.
func New(o Options) (*Client, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	o.defaults()
	c := &Client{opt: o, slots: make(chan struct{}, o.Concurrency), http: newHTTP(o.Concurrency)}
	if o.KeyVariable != "" {
		c.key = strings.TrimSpace(os.Getenv(o.KeyVariable))
		switch {
		case c.key == "":
			return nil, fmt.Errorf("llm: the environment variable %s, named as the place of the key of %s, is not set", o.KeyVariable, o.URL)
		case strings.ContainsFunc(c.key, func(r rune) bool { return r <= ' ' || r >= 0x7f }):
			return nil, fmt.Errorf("llm: the key in the environment variable %s has characters that no HTTP header takes", o.KeyVariable)
		}
	}
	return c, nil
}

func (o *Options) check() error {
	u, err := url.Parse(o.URL)
	switch {
	case err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "":
		return errors.New("llm: the endpoint's URL is none: write http://host:port/v1")
	case u.User != nil || u.RawQuery != "" || u.Fragment != "":
		return errors.New("llm: the endpoint's URL holds a user, a query or a fragment: write http://host:port/v1, and name the variable that holds the key")
	case o.Model == "":
		return fmt.Errorf("llm: %s: name the model", o.URL)
	case o.Timeout < 0 || o.Retries < 0 || o.MaxTokens < 0 || o.Concurrency < 0:
		return fmt.Errorf("llm: %s: timeout, retries, max_tokens and concurrency must not be negative", o.URL)
	case math.IsNaN(o.Temperature) || o.Temperature < 0 || o.Temperature > 2:
		return fmt.Errorf("llm: %s: temperature %g is outside 0..2", o.URL, o.Temperature)
	}
	return nil
}

func (o *Options) defaults() {
	o.URL = strings.TrimRight(o.URL, "/")
	if o.Timeout == 0 {
		o.Timeout = defaultTimeout
	}
	if o.MaxTokens == 0 {
		o.MaxTokens = defaultMaxTokens
	}
	if o.Concurrency == 0 {
		o.Concurrency = defaultConcurrency
	}
	if o.Sleep == nil {
		o.Sleep = sleep
	}
}

// newHTTP follows no redirect: the key and the traces go to the configured host alone. A proxy of the environment is used for
// https only, where it sees neither.
func newHTTP(conns int) *http.Client {
	return &http.Client{
		Transport: &http.Transport{
			Proxy: func(r *http.Request) (*url.URL, error) {
				if r.URL.Scheme != "https" {
					return nil, nil
				}
				return http.ProxyFromEnvironment(r)
			},
			DialContext:         (&net.Dialer{Timeout: dialTimeout}).DialContext,
			TLSHandshakeTimeout: dialTimeout,
			MaxIdleConnsPerHost: conns,
			IdleConnTimeout:     idleTimeout,
			ForceAttemptHTTP2:   true,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// Close drops idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Counters is a copy of the counts so far.
func (c *Client) Counters() Counters {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.count
}

func (c *Client) counted(f func(*Counters)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f(&c.count)
}

// Ask sends one question and returns what the server answered, whatever that says. Faults of the server and the network are
// retried; a parameter that the server does not take is left out, from then on. An error wraps ErrBudget, or the reason why
// ctx ended, or tells the last fault.
func (c *Client) Ask(ctx context.Context, r Request) (Reply, error) {
	reply, err := c.ask(ctx, r)
	if err != nil {
		c.counted(func(n *Counters) { n.Failed++ })
		return Reply{}, fmt.Errorf("llm: %s: %w", c.opt.URL, err)
	}
	return reply, nil
}

func (c *Client) ask(ctx context.Context, r Request) (Reply, error) {
	size := len(r.Schema)
	for _, m := range r.Messages {
		size += len(m.Content)
	}
	if size > maxRequest {
		return Reply{}, fmt.Errorf("a request of %d bytes; at most %d", size, maxRequest)
	}
	c.mu.Lock()
	d := c.dialect
	c.mu.Unlock()
	for try := 0; ; {
		reply, err := c.once(ctx, r, d)
		if err == nil {
			c.learn(d)
			return reply, nil
		}
		var f *fault
		if ctx.Err() != nil || !errors.As(err, &f) {
			return Reply{}, err
		}
		if next, ok := d.without(f, r); ok {
			d = next
			c.counted(func(n *Counters) { n.Fallbacks++ })
			continue
		}
		if !f.again || try >= c.opt.Retries {
			return Reply{}, err
		}
		if err := c.opt.Sleep(ctx, wait(r, try, f.retryAfter)); err != nil {
			return Reply{}, fmt.Errorf("waiting to try again after: %w: %w", f, err)
		}
		try++
		c.counted(func(n *Counters) { n.Retries++ })
	}
}

// once sends the question once, when a slot is free and the budget pays for it.
func (c *Client) once(ctx context.Context, r Request, d dialect) (Reply, error) {
	select {
	case c.slots <- struct{}{}:
	case <-ctx.Done():
		return Reply{}, context.Cause(ctx)
	}
	defer func() { <-c.slots }()
	most := r.promptTokens() + c.opt.MaxTokens
	if err := c.opt.Budget.reserve(most); err != nil {
		return Reply{}, err
	}
	reply, cost, err := c.exchange(ctx, r, d)
	c.opt.Budget.settle(most, cost.PromptTokens+cost.ReplyTokens)
	c.counted(func(n *Counters) {
		n.Calls++
		n.PromptTokens += cost.PromptTokens
		n.ReplyTokens += cost.ReplyTokens
	})
	return reply, err
}
