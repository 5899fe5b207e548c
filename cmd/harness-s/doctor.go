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
	"strings"

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
	Data  any    `json:"data,omitempty"` // the same for programs, where there is more than a line
	need  bool   // a failed need makes doctor fail; the rest is information
}

func (c *doctorCmd) Run(ctx context.Context) error {
	findings := []finding{checkMachine(), checkKernels(), checkCompiler(), checkGPU()}
	findings = append(findings, cudaFindings(cuda.Inspect(cuda.Options{}))...)
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
	f := finding{What: "gpu (nvml)"}
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

// cudaFindings is what the cuda backend needs, a line each. Without a driver the libraries are no use and only the first
// line is given.
func cudaFindings(info cuda.Info) []finding {
	driver := libraryFinding("cuda driver", info.Driver)
	driver.Data = info
	if !driver.OK {
		driver.Mend += " (nothing to do for the cpu backend)"
		return []finding{driver}
	}
	if info.NVML != "" {
		driver.Found += ", driver " + info.NVML
	}
	nccl := libraryFinding("nccl", info.NCCL)
	if nccl.OK {
		for _, v := range info.Collect {
			nccl.Found += fmt.Sprintf(", %s=%s", v[0], v[1])
		}
	}
	list := []finding{driver, libraryFinding("cublaslt", info.BLAS), nccl}
	for _, d := range info.Devices {
		list = append(list, deviceFinding(d))
	}
	if len(info.Devices) > 1 {
		list = append(list, peerFinding(info.Peers))
	}
	return list
}

func libraryFinding(what string, l cuda.Library) finding {
	if l.Problem != "" {
		return finding{What: what, Found: l.Problem, Mend: l.Mend}
	}
	return finding{What: what, OK: true, Found: fmt.Sprintf("%s, %s (%s)", l.Version, l.Path, l.From)}
}

// minCompute is what the kernels are built for: sm_80.
const minCompute = 8

func deviceFinding(d cuda.DeviceInfo) finding {
	f := finding{What: fmt.Sprintf("cuda %d", d.Index), OK: d.Major >= minCompute}
	f.Found = fmt.Sprintf("%s, sm_%d%d, %d SMs, %d MiB, %d KiB of shared memory a block, L2 %d MiB", d.Name, d.Major, d.Minor, d.SMs, d.Memory>>20, d.SharedOptin>>10, d.L2>>20)
	if !f.OK {
		f.Mend = "the kernels need compute capability 8.0 (A100) or newer"
	}
	return f
}

// peerFinding names the pairs of devices that do not read each other's memory: collectives between them go through the host.
func peerFinding(peers [][]bool) finding {
	var apart []string
	for i := range peers {
		for j := range i {
			if !peers[i][j] || !peers[j][i] {
				apart = append(apart, fmt.Sprintf("%d-%d", j, i))
			}
		}
	}
	if len(apart) == 0 {
		return finding{What: "peer access", OK: true, Found: fmt.Sprintf("between all %d devices", len(peers))}
	}
	return finding{What: "peer access", Found: "none between " + strings.Join(apart, ", "), Mend: "collectives between these go through host memory; see nvidia-smi topo -m"}
}
