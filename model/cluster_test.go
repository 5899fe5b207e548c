package model

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"harness-s/internal/nodes"
	"harness-s/internal/testutil"
	"harness-s/kernels"
	"harness-s/model/safetensors"
)

// A test binary that is started as another node follows the leader at this address.
const (
	childLeader = "HARNESS_S_TEST_LEADER"
	childNode   = "HARNESS_S_TEST_NODE"
	childNodes  = "HARNESS_S_TEST_NODES"
)

func TestMain(m *testing.M) {
	if os.Getenv(childLeader) != "" {
		os.Exit(followInChild())
	}
	os.Exit(m.Run())
}

func followInChild() int {
	p := nodes.Place{Leader: os.Getenv(childLeader), Patience: time.Minute}
	fmt.Sscan(os.Getenv(childNode), &p.Node)
	fmt.Sscan(os.Getenv(childNodes), &p.Nodes)
	l, err := nodes.Join(context.Background(), p, "test", nil)
	if err == nil {
		err = Follow(l)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// cluster is a group over this process and others, which are children.
type cluster struct {
	*Group
	children []*exec.Cmd
	errors   []*strings.Builder
}

// freePort is one that nothing listens at.
func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// gather starts the other nodes and waits for them.
func gather(t *testing.T, n int) (links []*nodes.Link, c *cluster) {
	t.Helper()
	c = &cluster{}
	p := nodes.Place{Nodes: n, Leader: freePort(t), Patience: time.Minute}
	for node := 1; node < n; node++ {
		cmd, text := exec.Command(os.Args[0], "-test.run=^$"), &strings.Builder{}
		cmd.Env = append(os.Environ(), childLeader+"="+p.Leader, fmt.Sprint(childNode, "=", node), fmt.Sprint(childNodes, "=", n))
		cmd.Stderr = text
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if cmd.ProcessState == nil {
				cmd.Process.Kill()
				cmd.Wait()
			}
		})
		c.children, c.errors = append(c.children, cmd), append(c.errors, text)
	}
	links, err := nodes.Gather(t.Context(), p, "test", func(s string) { t.Log(s) })
	if err != nil {
		t.Fatal(err)
	}
	return links, c
}

func openCluster(t *testing.T, dir string, n int, s Setup) *cluster {
	t.Helper()
	links, c := gather(t, n)
	var err error
	if c.Group, err = OpenGroup(s, links); err != nil {
		t.Fatal(err)
	}
	if err := c.Load(dir); err != nil {
		t.Fatal(err)
	}
	return c
}

// finish closes the group and wants every child to end by itself, as it should.
func (c *cluster) finish(t *testing.T) {
	t.Helper()
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	for i, cmd := range c.children {
		if err := cmd.Wait(); err != nil {
			t.Errorf("node %d: %v\n%s", i+1, err, c.errors[i])
		}
	}
}

func simSetup(devices int) Setup {
	return Setup{Backend: testDevice(), DType: kernels.F32, Devices: devices, Threads: 1}
}

// trainCluster is trainGroup on several nodes.
func trainCluster(t *testing.T, dir string, cfg Config, n int, s Setup, updates int) (out trained, moments string) {
	t.Helper()
	c := openCluster(t, dir, n, s)
	out.logps, out.norms = steps(t, c.Group, cfg, updates)
	to := t.TempDir()
	moments = filepath.Join(to, "moments")
	if err := c.WriteInto(to, SaveOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := c.WriteOptimizer(moments); err != nil {
		t.Fatal(err)
	}
	c.finish(t)
	out.weights, out.moments = testutil.Tensors(t, filepath.Join(to, safetensors.SingleName)), testutil.Tensors(t, moments)
	return out, moments
}

func needSimulator(t *testing.T) {
	if testDevice() != "sim" {
		t.Skip("every process has simulated devices of its own; real ones would have to be shared out")
	}
}

// TestNodesAgree: two nodes of two devices compute the bits of one node of four, offloaded or not, and what they write is
// read by one device.
func TestNodesAgree(t *testing.T) {
	needSimulator(t)
	cfg := deviceConfig(true)
	dir := savedPolicy(t, cfg)
	one := trainGroup(t, dir, cfg, newDevices(t, 4, kernels.F32), 2, Options{})
	for _, offload := range []bool{false, true} {
		s := simSetup(2)
		s.Offload = offload
		two, moments := trainCluster(t, dir, cfg, 2, s, 2)
		what := fmt.Sprintf("two nodes, offload=%t", offload)
		for i, norm := range two.norms {
			if !offload && math.Float64bits(norm) != math.Float64bits(one.norms[i]) {
				t.Errorf("%s: gradient norm %g, one node has %g", what, norm, one.norms[i])
			}
		}
		if offload { // the host's update rounds its own way
			closeTensors(t, what, two.moments, one.moments, 1e-4)
			continue
		}
		sameFloats(t, what, two.logps, one.logps)
		sameTensors(t, what, two.weights, one.weights)
		sameTensors(t, what, two.moments, one.moments)
		resumesAlone(t, dir, moments, one.moments)
	}
}

// resumesAlone reads moments on one device and writes them again.
func resumesAlone(t *testing.T, dir, moments string, want map[string][]float32) {
	t.Helper()
	g, err := LoadGroup(dir, newDevices(t, 1, kernels.F32), Options{Train: true})
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	again := filepath.Join(t.TempDir(), "again")
	if err := g.ReadOptimizer(moments); err != nil {
		t.Fatal(err)
	}
	if err := g.WriteOptimizer(again); err != nil {
		t.Fatal(err)
	}
	sameTensors(t, "moments read on one device", testutil.Tensors(t, again), want)
}

// TestNodesLost: a node that is killed while the others' collectives wait for it ends the group with its name, for good.
func TestNodesLost(t *testing.T) {
	needSimulator(t)
	cfg := deviceConfig(true)
	c := openCluster(t, savedPolicy(t, cfg), 3, simSetup(2))
	rng := rand.New(rand.NewPCG(12, 3))
	batches := make([]Batch, 6)
	for i := range batches {
		batches[i] = testBatch(rng, cfg.Vocab, 9, 40)
	}
	victim := c.children[1]
	err := c.Accumulate(batches, ForwardOptions{}, func(i int, s Stats) ([]float32, error) {
		if i == len(batches)-1 { // what follows is the round's backward pass
			victim.Process.Kill()
			victim.Wait()
		}
		return coefficients(rng, len(s.Logp)), nil
	})
	if err == nil || !strings.Contains(err.Error(), "node 2 (") {
		t.Fatalf("node 2 is gone: %v", err)
	}
	if _, _, again := c.GradStats(); !errors.Is(again, err) {
		t.Errorf("after the end: %v", again)
	}
	if err := c.Close(); err != nil {
		t.Errorf("close after the end: %v", err)
	}
	if err := c.children[0].Wait(); err == nil || !strings.Contains(c.errors[0].String(), "node 2 (") {
		t.Errorf("the node that lives ends with %v\n%s", err, c.errors[0])
	}
}
