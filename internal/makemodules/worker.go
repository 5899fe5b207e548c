package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"

	"golang.org/x/sync/errgroup"

	"harness-s/cuda"
	"harness-s/internal/hsm"
)

// job is one compilation; result is its answer. Both travel as JSON between this program and its worker processes.
type job struct{ File, Arch string }

type result struct {
	Job     job
	Sources string // hsm.SourceHash of what was compiled
	Image   []byte
	Log     string
	Error   string
}

// runJobs compiles jobs in up to n worker processes.
func runJobs(library, sources string, jobs []job, n int) (map[job]result, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	queue := make(chan job, len(jobs))
	for _, j := range jobs {
		queue <- j
	}
	close(queue)
	results := map[job]result{}
	var mu sync.Mutex
	var g errgroup.Group
	for range min(n, len(jobs)) {
		g.Go(func() error {
			return drive(exec.Command(self, "-worker", library, "-sources", sources), queue, func(r result) {
				mu.Lock()
				defer mu.Unlock()
				results[r.Job] = r
			})
		})
	}
	return results, g.Wait()
}

// drive gives one worker jobs, one at a time, until the queue is empty.
func drive(worker *exec.Cmd, queue <-chan job, done func(result)) error {
	worker.Stderr = os.Stderr
	in, err := worker.StdinPipe()
	if err != nil {
		return err
	}
	out, err := worker.StdoutPipe()
	if err != nil {
		return err
	}
	if err := worker.Start(); err != nil {
		return err
	}
	ask, answer := json.NewEncoder(in), json.NewDecoder(out)
	for j := range queue {
		var r result
		err := ask.Encode(j)
		if err == nil {
			err = answer.Decode(&r)
		}
		if err != nil {
			in.Close()
			return fmt.Errorf("%s for %s: the compiling process ended: %w", j.File, j.Arch, errors.Join(err, worker.Wait()))
		}
		done(r)
	}
	in.Close()
	return worker.Wait()
}

// serve is the worker process.
func serve(library, sources string, in io.Reader, out io.Writer) error {
	c, err := cuda.OpenCompiler(library)
	if err != nil {
		return err
	}
	defer c.Close()
	if major, minor := c.Version(); fmt.Sprintf("%d.%d", major, minor) != hsm.NVRTC {
		return fmt.Errorf("%s is NVRTC %d.%d: modules are made with %s", library, major, minor, hsm.NVRTC)
	}
	dec, enc := json.NewDecoder(in), json.NewEncoder(out)
	for {
		var j job
		if err := dec.Decode(&j); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		if err := enc.Encode(compile(c, sources, j)); err != nil {
			return err
		}
	}
}

func compile(c *cuda.Compiler, sources string, j job) result {
	r := result{Job: j}
	text, headers, err := hsm.Sources(os.DirFS(sources), j.File)
	if err == nil {
		r.Sources = hsm.SourceHash(j.File, text, headers)
		var image cuda.Image
		image, r.Log, err = c.Compile(cuda.Source{Name: j.File, Text: text, Headers: headers}, append(hsm.Options(), "-arch="+j.Arch)...)
		r.Image = image.Data
	}
	if err != nil {
		r.Error = fmt.Sprintf("for %s: %v", j.Arch, err)
	}
	return r
}
