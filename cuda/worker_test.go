package cuda

import (
	"runtime"
	"sync"
	"syscall"
	"testing"
)

func TestWorkerStaysOnOneThread(t *testing.T) {
	w := NewWorker()
	defer w.Close()
	threads := map[int]int{}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 50 {
				w.Do(func() { threads[syscall.Gettid()]++ }) // no lock: the worker is one goroutine
				runtime.Gosched()
			}
		})
	}
	wg.Wait()
	if len(threads) != 1 {
		t.Errorf("ran on threads %v", threads)
	}
}

func TestWorkerHandsPanicsBack(t *testing.T) {
	w := NewWorker()
	defer w.Close()
	func() {
		defer func() {
			if got := recover(); got != "stop" {
				t.Errorf("recovered %v", got)
			}
		}()
		w.Do(func() { panic("stop") })
	}()
	ran := false
	w.Do(func() { ran = true })
	if !ran {
		t.Error("the worker ended with the panic")
	}
}

func TestWorkerThatEnded(t *testing.T) {
	w := NewWorker()
	w.Do(func() { runtime.Goexit() })
	<-w.done
	defer func() {
		if recover() == nil {
			t.Error("no panic")
		}
	}()
	w.Do(func() {})
}
