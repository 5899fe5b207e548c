package trainer

import (
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"sort"
	"strings"
	"time"

	"harness-s/cuda"
	"harness-s/kernels"
	"harness-s/model"
	"harness-s/rollout/policy"
)

// Device is what a plan computes for.
type Device struct {
	Name   string
	Memory int64   // bytes
	Rate   float64 // sustained FLOP/s of matrix products
	// GPU, where not nil, is the device that a plan runs the training's host code for, with nothing computed. nil: the host.
	GPU *cuda.DeviceInfo
	// Nodes is how many machines with cfg.Devices such devices each share the training; 0: 1.
	Nodes int
}

// ranks is the number of devices that share the training.
func (d Device) ranks(c Config) int { return c.Devices * max(1, d.Nodes) }

// Plan estimates memory of each device and time of a config. It reads the policy's config.json and nothing else.
type Plan struct {
	Device     string           `json:"device"`
	Devices    int              `json:"devices"` // of each node
	Nodes      int              `json:"nodes"`
	Parameters int              `json:"parameters"`
	Memory     map[string]int64 `json:"memory_bytes"` // of one device, by part
	Host       int64            `json:"host_bytes"`   // of a node's host, for its devices, where the config keeps the optimizer there
	Total      int64            `json:"total_bytes"`
	Available  int64            `json:"available_bytes"`
	Fits       bool             `json:"fits"`
	Steps      int              `json:"steps"`          // at most, when nothing is rescued
	RowTokens  int              `json:"row_tokens"`     // assumed tokens of a rollout
	StepS      float64          `json:"step_s"`         // training side of a step, at the assumed efficiency
	TrainS     float64          `json:"train_s"`        // of all steps
	Efficiency float64          `json:"efficiency"`     // share of Rate that a whole step is assumed to reach
	Mend       []string         `json:"mend,omitempty"` // what would make it fit
}

// planEfficiency is the share of the product rate that a whole step reaches: what `bench step` reaches on a CPU. GPUs are
// assumed to do as well until the device path has been measured on one.
const planEfficiency = 0.5

// ReadShape is the architecture of a config's policy.
func ReadShape(cfg Config) (model.Config, error) {
	shape, err := model.ReadConfig(cfg.Model.Path)
	if err != nil {
		return model.Config{}, fmt.Errorf("plan: model.path: %w", err)
	}
	return shape, nil
}

// NewPlan estimates for rollouts of rowTokens tokens of a policy of a shape.
func NewPlan(cfg Config, shape model.Config, d Device, rowTokens int) (Plan, error) {
	p := Plan{Device: d.Name, Devices: cfg.Devices, Nodes: max(1, d.Nodes), Parameters: shape.NumParams(), Available: d.Memory, RowTokens: rowTokens, Efficiency: planEfficiency}
	var err error
	if p.Memory, err = planMemory(cfg, &shape, d); err != nil {
		return Plan{}, err
	}
	p.Total = total(p.Memory)
	if cfg.Model.Offload {
		world := d.ranks(cfg)
		p.Host = 12 * int64(shape.MatrixWords(world)/world*cfg.Devices) // master, two moments
	}
	if p.Fits = p.Total <= d.Memory; !p.Fits {
		if p.Mend, err = planMend(cfg, &shape, d); err != nil {
			return Plan{}, err
		}
	}
	perStep := cfg.Rollout.Tasks * cfg.Rollout.N
	p.Steps = (cfg.Budget.Rollouts + perStep - 1) / perStep
	if cfg.Budget.Steps > 0 {
		p.Steps = min(p.Steps, cfg.Budget.Steps)
	}
	forward, training := shape.FLOPs(rowTokens / 2)
	flop := float64(perStep*rowTokens) * float64(forward+training*int64(cfg.Optim.Epochs)) // old log-probs, then the updates
	p.StepS = flop / (d.Rate * planEfficiency * float64(d.ranks(cfg)))
	p.TrainS = p.StepS * float64(p.Steps)
	return p, nil
}

func total(memory map[string]int64) (sum int64) {
	for _, n := range memory {
		sum += n
	}
	return sum
}

// planMemory is the trainer's memory on one device. On the host an embedded policy server has its own copy and cache there.
func planMemory(cfg Config, shape *model.Config, d Device) (map[string]int64, error) {
	if d.GPU != nil {
		return deviceMemory(cfg, shape, d)
	}
	if d.Nodes > 1 {
		return nil, fmt.Errorf("plan: %d nodes, but a CPU trains on one; plan for a GPU (--device), or without NNODES (under Slurm: NNODES=1)", d.Nodes)
	}
	m := model.Memory(*shape, cfg.Optim.MicrobatchTok, cfg.Model.Recompute)
	if cfg.Rollout.Endpoint == "" {
		m["server weights"] = m["weights"] + m["compute weights"]
		m["server cache"] = policy.DefaultCacheTokens / kernels.ChunkLen * shape.CacheBytes() // when full
	}
	return m, nil
}

// contextBytes is what a driver and its libraries take on a device before any allocation, roughly.
const contextBytes = 1 << 30

// deviceMemory runs the training's own allocations on a recorded device without limits.
func deviceMemory(cfg Config, shape *model.Config, d Device) (map[string]int64, error) {
	dtype, err := kernels.ParseDType(cfg.Model.DType)
	if err != nil {
		return nil, fmt.Errorf("plan: model.dtype: %w", err)
	}
	info, world := *d.GPU, d.ranks(cfg)
	info.Memory = 1 << 50
	be, rec, err := kernels.OpenRecording(info, dtype, world)
	if err != nil {
		return nil, fmt.Errorf("plan: %w", err)
	}
	defer rec.Close()
	defer be.Close()
	m, err := model.Footprint(*shape, be, max(cfg.Optim.MicrobatchTok, 1), model.Options{Recompute: cfg.Model.Recompute})
	if err != nil {
		return nil, fmt.Errorf("plan: %w", err)
	}
	if cfg.Model.Offload {
		own := 4 * int64(shape.MatrixWords(world)/world)
		m["weights"], m["optimizer"] = m["weights"]-own, m["optimizer"]-2*own
	}
	m["driver and libraries"] = contextBytes
	return m, nil
}

// planMend tries what costs least first, one thing after another, until the config fits.
func planMend(cfg Config, shape *model.Config, d Device) (mend []string, err error) {
	fits := func() bool {
		var m map[string]int64
		if m, err = planMemory(cfg, shape, d); err != nil {
			return true
		}
		return total(m) <= d.Memory
	}
	if !cfg.Model.Recompute {
		cfg.Model.Recompute = true
		mend = append(mend, "model.recompute=true")
	}
	if d.GPU != nil && cfg.Model.DType == "fp32" && !fits() {
		cfg.Model.DType = "bf16"
		mend = append(mend, "model.dtype=bf16")
	}
	for was := cfg.Optim.MicrobatchTok; !fits() && cfg.Optim.MicrobatchTok > cfg.Rollout.MaxContext; {
		cfg.Optim.MicrobatchTok = max(cfg.Optim.MicrobatchTok/2, cfg.Rollout.MaxContext)
		if next := fmt.Sprintf("optim.microbatch_tokens=%d", cfg.Optim.MicrobatchTok); was != cfg.Optim.MicrobatchTok {
			mend = append(slices.DeleteFunc(mend, func(s string) bool { return strings.HasPrefix(s, "optim.") }), next)
		}
	}
	if d.GPU != nil && !fits() {
		cfg.Model.Offload = true
		mend = append(mend, "model.offload=true")
	}
	for d.GPU != nil && !fits() && cfg.Devices < 64 {
		cfg.Devices *= 2
		mend = append(slices.DeleteFunc(mend, func(s string) bool { return strings.HasPrefix(s, "devices=") }), fmt.Sprintf("devices=%d", cfg.Devices))
	}
	if !fits() {
		if d.GPU == nil && cfg.Rollout.Endpoint == "" {
			mend = append(mend, "rollout.endpoint=URL (a server on another device)")
		}
		mend = append(mend, "a smaller policy or a device with more memory")
	}
	return mend, err
}

// Write prints the plan for people.
func (p Plan) Write(w io.Writer) {
	device := p.Device
	switch {
	case p.Nodes > 1:
		device = fmt.Sprintf("%d nodes of %d x %s, each device", p.Nodes, p.Devices, p.Device)
	case p.Devices > 1:
		device = fmt.Sprintf("%d x %s, each", p.Devices, p.Device)
	}
	fmt.Fprintf(w, "%s, %d parameters\n", device, p.Parameters)
	parts := make([]string, 0, len(p.Memory))
	for name := range p.Memory {
		parts = append(parts, name)
	}
	sort.Slice(parts, func(i, j int) bool { return p.Memory[parts[i]] > p.Memory[parts[j]] })
	for _, name := range parts {
		fmt.Fprintf(w, "  %-18s %10.1f MiB\n", name, float64(p.Memory[name])/(1<<20))
	}
	verdict := "fits"
	if !p.Fits {
		verdict = "does not fit; would: " + strings.Join(p.Mend, ", ")
	}
	fmt.Fprintf(w, "  %-18s %10.1f MiB of %.0f MiB: %s\n", "total", float64(p.Total)/(1<<20), float64(p.Available)/(1<<20), verdict)
	if p.Host > 0 {
		fmt.Fprintf(w, "  %-18s %10.1f MiB of each node's host memory for its devices\n", "offloaded", float64(p.Host)/(1<<20))
	}
	fmt.Fprintf(w, "  at most %d steps; training %.2g s a step, %.3g s in all if every rollout is trained on (%d tokens each, %.0f%% of the device's product rate; sampling not counted)\n",
		p.Steps, p.StepS, p.TrainS, p.RowTokens, 100*p.Efficiency)
}

// ThisMachine measures the CPU's product rate for a moment and reads its memory.
func ThisMachine(threads int) (Device, error) {
	be, err := kernels.NewCPU(threads)
	if err != nil {
		return Device{}, fmt.Errorf("plan: %w", err)
	}
	defer be.Close()
	const n = 512
	x, err1 := be.Alloc("plan", n*n)
	y, err2 := be.Alloc("plan", n*n)
	c, err3 := be.Alloc("plan", be.PackSize(n, n))
	for _, err := range []error{err1, err2, err3} {
		if err != nil {
			return Device{}, fmt.Errorf("plan: %w", err)
		}
	}
	w := kernels.Weight{Master: x, Compute: c, Out: n, In: n}
	be.Pack(w)
	be.Linear(y, x, w, n)
	start, runs := time.Now(), 0
	for time.Since(start) < 200*time.Millisecond {
		be.Linear(y, x, w, n)
		runs++
	}
	if threads == 0 {
		threads = runtime.NumCPU()
	}
	d := Device{Name: fmt.Sprintf("this machine's CPU, %d threads", threads), Memory: memoryTotal()}
	d.Rate = float64(runs) * 2 * n * n * n / time.Since(start).Seconds()
	return d, nil
}

// memoryTotal is the machine's memory in bytes, 0 where the system does not say.
func memoryTotal() int64 {
	raw, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0
	}
	var kib int64
	if _, err := fmt.Sscanf(string(raw), "MemTotal: %d kB", &kib); err != nil {
		return 0
	}
	return kib << 10
}
