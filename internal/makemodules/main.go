// Command makemodules compiles kernels/cu/*.cu into kernels/modules (make modules). It needs NVRTC and nothing else of CUDA:
// a pinned wheel is fetched when HARNESS_S_NVRTC names no library. Only sources that changed are compiled again, in
// processes side by side, because NVRTC takes one program at a time.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
)

type options struct {
	sources, modules, cache string
	processes               int
	check                   bool
}

func main() {
	var o options
	flag.StringVar(&o.sources, "sources", "kernels/cu", "folder of the .cu files")
	flag.StringVar(&o.modules, "modules", "kernels/modules", "folder of the modules")
	flag.StringVar(&o.cache, "cache", ".cache/nvrtc", "folder for the NVRTC wheel")
	flag.IntVar(&o.processes, "processes", runtime.NumCPU(), "compilations side by side")
	flag.BoolVar(&o.check, "check", false, "compile and report, write nothing")
	worker := flag.String("worker", "", "internal: compile what stdin asks for with this NVRTC")
	flag.Parse()
	err := run(o, *worker)
	if err != nil {
		fmt.Fprintln(os.Stderr, "makemodules:", err)
		os.Exit(1)
	}
}

func run(o options, worker string) error {
	if worker != "" {
		return serve(worker, o.sources, os.Stdin, os.Stdout)
	}
	if o.processes < 1 {
		return errors.New("-processes: want 1 or more")
	}
	b, err := plan(o)
	if err != nil {
		return err
	}
	if len(b.stale) > 0 {
		if err := b.compile(); err != nil {
			return err
		}
	}
	return b.finish()
}

// sourceFiles are the .cu files' names, in order.
func sourceFiles(dir string) ([]string, error) {
	paths, err := filepath.Glob(filepath.Join(dir, "*.cu"))
	if err != nil {
		return nil, err
	}
	var names []string
	for _, p := range paths {
		names = append(names, filepath.Base(p))
	}
	return names, nil
}
