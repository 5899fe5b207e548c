package report

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"time"
)

// Handler serves a run folder: the report at /, the rollouts of a step at /step/N. Every page is read from the folder
// anew, so a run at work can be watched.
func Handler(dir string) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		if isEvolution(dir) {
			p, err := evolutionPage(dir)
			render(w, "evolution", p, err)
			return
		}
		p, err := build(dir, true)
		render(w, "report", p, err)
	})
	mux.HandleFunc("GET /step/{n}", func(w http.ResponseWriter, r *http.Request) {
		n, err := strconv.Atoi(r.PathValue("n"))
		if err != nil {
			http.NotFound(w, r)
			return
		}
		p, err := stepPage(dir, n)
		if errors.Is(err, os.ErrNotExist) {
			http.NotFound(w, r)
			return
		}
		render(w, "step", p, err)
	})
	return localOnly(mux)
}

// localOnly refuses requests whose Host is not this machine, so that no web page can read rollouts through a name of its
// own that it points at the loopback address.
func localOnly(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host, _, err := net.SplitHostPort(r.Host)
		if err != nil {
			host = r.Host
		}
		if ip := net.ParseIP(host); host != "localhost" && (ip == nil || !ip.IsLoopback()) {
			http.Error(w, "view answers on localhost and loopback addresses only", http.StatusForbidden)
			return
		}
		next.ServeHTTP(w, r)
	})
}

func render(w http.ResponseWriter, name string, p any, err error) {
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'")
	if err := pages.ExecuteTemplate(w, name, p); err != nil {
		// The head is out already: the page ends here, the reason goes into it.
		fmt.Fprintf(w, "<pre>%v</pre>", err)
	}
}

// stepPage lists the attempts of one training step, at most maxPerStep.
func stepPage(dir string, step int) (*page, error) {
	logs, err := listLogs(dir)
	if err != nil {
		return nil, err
	}
	for _, l := range logs {
		if l.label != "step" || l.step != step {
			continue
		}
		records, err := readLog(l.path, maxPerStep)
		if err != nil {
			return nil, err
		}
		title := fmt.Sprintf("%s, step %d: %d rollouts", filepath.Base(dir), step, len(records))
		return &page{Title: title, Groups: group(records, openDecoder(dir))}, nil
	}
	return nil, fmt.Errorf("step %d: %w", step, os.ErrNotExist)
}

// Serve answers on addr until ctx ends; ready is called with the address once it listens.
func Serve(ctx context.Context, dir, addr string, ready func(addr string)) error {
	if _, err := os.Stat(filepath.Join(dir, "config.yaml")); err != nil {
		return fmt.Errorf("view: %s is no run folder: %w", dir, err)
	}
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return fmt.Errorf("view: %w; choose another port with --port", err)
	}
	server := &http.Server{Handler: Handler(dir), ReadHeaderTimeout: 5 * time.Second, IdleTimeout: time.Minute}
	ready(l.Addr().String())
	done := make(chan error, 1)
	go func() { done <- server.Serve(l) }()
	select {
	case err := <-done:
		return fmt.Errorf("view: %w", err)
	case <-ctx.Done():
	}
	stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer cancel()
	err = server.Shutdown(stop)
	<-done
	if err != nil {
		return fmt.Errorf("view: %w", err)
	}
	return nil
}
