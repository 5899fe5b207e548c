package cuda

import "runtime"

// Worker is the one goroutine that uses a device, bound to an OS thread so that the device's context stays current on it.
// The data-parallel learner has one a device.
type Worker struct {
	jobs chan job
	done chan struct{}
}

type job struct {
	f    func()
	over chan any // what f panicked with, or nil
}

// NewWorker starts the goroutine; Close ends it.
func NewWorker() *Worker {
	w := &Worker{jobs: make(chan job), done: make(chan struct{})}
	go w.run()
	return w
}

func (w *Worker) run() {
	runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
	defer close(w.done)
	for j := range w.jobs {
		j.run()
	}
}

// run answers in a deferred call, so that a runtime.Goexit inside f (a test's FailNow) does not leave Do waiting.
func (j job) run() {
	defer func() { j.over <- recover() }()
	j.f()
}

// Do runs f on the worker's goroutine and waits for it; a panic of f is the caller's. Calls from several goroutines run
// one after another. f must not call Do of the same worker.
func (w *Worker) Do(f func()) {
	j := job{f, make(chan any, 1)}
	select {
	case w.jobs <- j:
	case <-w.done:
		panic("cuda: the worker has ended")
	}
	if p := <-j.over; p != nil {
		panic(p)
	}
}

// Close waits for the work under way and ends the goroutine. Do must not be called after it.
func (w *Worker) Close() {
	close(w.jobs)
	<-w.done
}
