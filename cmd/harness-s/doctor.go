package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"

	"harness-s/cuda"
	"harness-s/kernels"
)

type doctorCmd struct {
	Env      string `help:"Check what an environment needs (sql, dbbench)." placeholder:"NAME"`
	Endpoint string `help:"Check a policy server." placeholder:"URL"`
	JSON     bool   `help:"Machine-readable output on stdout."`
}

// finding is one line of doctor: what was looked for, what was found, what to do.
type finding struct {
	What  string `json:"what"`
	OK    bool   `json:"ok"`
	Found string `json:"found"`
	Mend  string `json:"mend,omitempty"`
	need  bool   // a failed need makes doctor fail; the rest is information
}

func (c *doctorCmd) Run(ctx context.Context) error {
	findings := []finding{checkMachine(), checkKernels(), checkCompiler(), checkGPU()}
	if c.Env != "" {
		f, err := checkEnvironment(ctx, c.Env)
		if err != nil {
			return err
		}
		findings = append(findings, f...)
	}
	if c.Endpoint != "" {
		findings = append(findings, checkEndpoint(ctx, c.Endpoint)...)
	}
	w := os.Stderr
	if c.JSON {
		w = os.Stdout
	}
	return reportFindings(w, findings, c.JSON)
}

func reportFindings(w io.Writer, findings []finding, asJSON bool) error {
	if asJSON {
		enc := json.NewEncoder(w)
		enc.SetIndent("", " ")
		if err := enc.Encode(findings); err != nil {
			return fmt.Errorf("doctor: write: %w", err)
		}
	}
	missing := 0
	for _, f := range findings {
		if f.need && !f.OK {
			missing++
		}
		if asJSON {
			continue
		}
		mark := "ok  "
		if !f.OK {
			mark = "--  "
		}
		fmt.Fprintf(w, "%s%-14s %s\n", mark, f.What, f.Found)
		if f.Mend != "" {
			fmt.Fprintf(w, "    %-14s -> %s\n", "", f.Mend)
		}
	}
	if missing > 0 {
		return fmt.Errorf("doctor: %d needed thing(s) missing", missing)
	}
	return nil
}

func checkMachine() finding {
	return finding{What: "machine", OK: true, Found: fmt.Sprintf("%s/%s, %d cores, %s", runtime.GOOS, runtime.GOARCH, runtime.NumCPU(), runtime.Version())}
}

func checkKernels() finding {
	f := finding{What: "cpu backend", need: true}
	be, err := kernels.NewCPU(0)
	if err != nil {
		f.Found, f.Mend = err.Error(), "build with CGO_ENABLED=1 and a C compiler (make build)"
		return f
	}
	defer be.Close()
	f.OK, f.Found = true, be.Name()
	if isa, ok := be.(interface{ ISA() string }); ok {
		f.Found += ", kernels for " + isa.ISA()
	}
	return f
}

func checkCompiler() finding {
	for _, cc := range []string{os.Getenv("CC"), "gcc", "clang"} {
		if cc == "" {
			continue
		}
		if path, err := exec.LookPath(cc); err == nil {
			return finding{What: "C compiler", OK: true, Found: path}
		}
	}
	return finding{What: "C compiler", Found: "none on PATH", Mend: "apt-get install gcc (needed to build, not to run)"}
}

func checkGPU() finding {
	f := finding{What: "gpu"}
	m, err := cuda.OpenMonitor()
	if errors.Is(err, cuda.ErrNoDriver) {
		f.Found, f.Mend = err.Error(), "nothing to do for the cpu backend; for GPUs install NVIDIA's driver"
		return f
	}
	if err != nil {
		f.Found = err.Error()
		return f
	}
	defer m.Close()
	inv, err := m.Inventory()
	if err != nil {
		f.Found = err.Error()
		return f
	}
	f.OK = len(inv.Devices) > 0
	f.Found = fmt.Sprintf("driver %s, CUDA %s, %d device(s)", inv.Driver, inv.CUDA, len(inv.Devices))
	for _, d := range inv.Devices {
		f.Found += fmt.Sprintf("; %d: %s sm_%d%d %d/%d MiB free", d.Index, d.Name, d.Major, d.Minor, d.MemoryFree>>20, d.MemoryTotal>>20)
	}
	return f
}
