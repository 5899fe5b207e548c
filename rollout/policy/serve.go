package policy

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"syscall"
	"time"
)

const (
	headerTimeout = 10 * time.Second // until the request line and headers are in
	readTimeout   = 60 * time.Second // until the body is in
	writeTimeout  = 60 * time.Second // for the client to take a reply, or an event of a stream
	idleTimeout   = 60 * time.Second
	stopGrace     = 10 * time.Second // for requests in flight when stopping
)

func (s *Server) httpServer() *http.Server {
	return &http.Server{Handler: s.Handler(), ReadHeaderTimeout: headerTimeout,
		IdleTimeout: idleTimeout, MaxHeaderBytes: 64 << 10, ErrorLog: s.log}
}

// listen opens addr. "" and ":port" mean loopback.
func listen(addr string) (net.Listener, error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, fmt.Errorf("address %q: %w; write host:port", addr, err)
	}
	if host == "" {
		host = "127.0.0.1"
	}
	l, err := net.Listen("tcp", net.JoinHostPort(host, port))
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, fmt.Errorf("port %s on %s is in use by another process: stop it or choose another port: %w", port, host, err)
	}
	return l, err
}

// Serve listens on addr (loopback when no host is named) until ctx ends, then lets requests in flight finish for a
// moment and closes the engine. ready, if not nil, is told the URL once it listens.
func (s *Server) Serve(ctx context.Context, addr string, ready func(url string)) error {
	l, err := listen(addr)
	if err != nil {
		return errors.Join(err, s.Close())
	}
	srv := s.httpServer()
	failed := make(chan error, 1)
	go func() { failed <- srv.Serve(l) }()
	if ready != nil {
		ready("http://" + l.Addr().String())
	}
	select {
	case err := <-failed:
		return errors.Join(fmt.Errorf("serving on %s: %w", l.Addr(), err), s.Close())
	case <-ctx.Done():
	}
	grace, cancel := context.WithTimeout(context.Background(), stopGrace)
	defer cancel()
	err = srv.Shutdown(grace)
	return s.finish(srv, err)
}

// finish ends what a shutdown left: the engine answers its requests with 503.
func (s *Server) finish(srv *http.Server, err error) error {
	closed := s.Close()
	if err == nil {
		return closed
	}
	last, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if srv.Shutdown(last) != nil {
		srv.Close()
	}
	return closed
}

// StartLocal serves on a free loopback port in this process. stop answers what is in flight with 503 and closes the
// engine; it may be called more than once.
func (s *Server) StartLocal() (url string, stop func() error, err error) {
	l, err := listen("127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	srv := s.httpServer()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		srv.Serve(l)
	}()
	stop = func() error {
		err := s.finish(srv, context.Canceled)
		<-ended
		return err
	}
	return "http://" + l.Addr().String(), stop, nil
}
