package trainer

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"harness-s/internal/nodes"
	"harness-s/internal/testutil"
)

// nodesKind is a run on four simulated devices, of one node or of two.
const nodesKind = "nodes"

func nodesConfig(policy, root string) Config {
	c := deviceConfig(policy, root, "4b-8gpu")
	c.Devices = 2
	return c
}

// childNode is the other node, as a process.
func childNode(c Config) int {
	place, err := nodes.FromEnv(os.Getenv)
	if err == nil {
		err = Follow(context.Background(), c, place, os.Stderr)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// asNode gives a process its place.
func asNode(leader string, node int) []string {
	host, port, _ := net.SplitHostPort(leader)
	return []string{"NNODES=2", fmt.Sprint("NODE_RANK=", node), "MASTER_ADDR=" + host, "MASTER_PORT=" + port, nodes.TokenVariable + "=secret"}
}

// nodesRig is a leader whose other node is a process; both end with the test.
type nodesRig struct {
	*rig
	other *exec.Cmd
	text  strings.Builder // what the other node says
}

func newNodesRig(t *testing.T, dir string) *nodesRig {
	t.Helper()
	g := &nodesRig{rig: crashRig(nodesKind, dir)}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute) // a run that hangs
	t.Cleanup(cancel)
	g.ctx = ctx
	leader := freeAddress(t)
	env := map[string]string{}
	for _, v := range asNode(leader, 0) {
		name, value, _ := strings.Cut(v, "=")
		env[name] = value
	}
	var err error
	if g.nodes, err = nodes.FromEnv(func(name string) string { return env[name] }); err != nil {
		t.Fatal(err)
	}
	g.other = exec.Command(os.Args[0], "-test.run=^$")
	g.other.Env = append(append(os.Environ(), childKind+"="+nodesKind, childDir+"=unused"), asNode(leader, 1)...)
	g.other.Stderr = &g.text
	if err := g.other.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if g.other.ProcessState == nil {
			g.other.Process.Kill()
			g.other.Wait()
		}
	})
	return g
}

// freeAddress is one that nothing listens at.
func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// finish runs to the end, which the other node must reach as well.
func (g *nodesRig) finish(t *testing.T) {
	t.Helper()
	g.must(t)
	if err := g.other.Wait(); err != nil || !strings.Contains(g.text.String(), "node 1 of 2: node 0 ended the run") {
		t.Errorf("node 1: %v\n%s", err, g.text.String())
	}
}

// nodesRun is the run on one node of four devices, which the others are compared with.
func nodesRun(t *testing.T) *rig {
	t.Helper()
	policy := filepath.Join(t.TempDir(), "policy")
	if err := randomPolicy(policy); err != nil {
		t.Fatal(err)
	}
	t.Setenv(childRoot, testutil.Root(t))
	t.Setenv(childWith, policy)
	one := crashRig(nodesKind, filepath.Join(t.TempDir(), "run"))
	one.cfg.Devices = 4
	one.must(t)
	one.wantUpdates(t)
	return one
}

// TestNodes: two processes of two devices train to the bits of one process of four. When one of them is killed the leader
// says which, and the run resumes, with another process in its place, to the same bits.
func TestNodes(t *testing.T) {
	if testing.Short() {
		t.Skip("starts processes")
	}
	one := nodesRun(t)
	two := newNodesRig(t, filepath.Join(t.TempDir(), "run"))
	two.finish(t)
	sameRun(t, one.dir, two.dir)

	dir := filepath.Join(t.TempDir(), "run")
	loseNode(t, newNodesRig(t, dir))
	again := newNodesRig(t, dir)
	again.resume = true
	again.finish(t)
	sameRun(t, one.dir, dir)
}

// loseNode runs until the other node is killed, after the first checkpoint.
func loseNode(t *testing.T, g *nodesRig) {
	t.Helper()
	killed := make(chan bool, 1)
	stop := make(chan struct{})
	go func() {
		for {
			if _, err := os.Stat(filepath.Join(g.dir, "checkpoints", "step_2")); err == nil {
				g.other.Process.Kill()
				killed <- true
				return
			}
			select {
			case <-stop:
				killed <- false
				return
			case <-time.After(2 * time.Millisecond):
			}
		}
	}()
	start := time.Now()
	_, err := g.run()
	close(stop)
	if !<-killed || err == nil || !strings.Contains(err.Error(), "node 1 (") {
		t.Fatalf("the other node was killed, and the leader's error is: %v\n%s", err, g.out.String())
	}
	t.Logf("after %s: %v", time.Since(start).Round(time.Millisecond), err)
	if _, err := os.Stat(filepath.Join(g.dir, "summary.json")); err == nil {
		t.Error("a run that broke has a summary")
	}
}

// TestNodesDiffer: a node with another config is refused, on both sides by name.
func TestNodesDiffer(t *testing.T) {
	c := Default()
	c.Backend = "sim"
	other := c
	other.Optim.LR *= 2
	place := nodes.Place{Nodes: 2, Leader: freeAddress(t), Token: "secret", Patience: time.Minute}
	ctx, cancel := context.WithCancel(t.Context())
	gathered := make(chan error, 1)
	go func() {
		_, err := nodes.Gather(ctx, place, runHash(c), nil)
		gathered <- err
	}()
	me := place
	me.Node = 1
	if err := Follow(ctx, other, me, t.Output()); err == nil || !strings.Contains(err.Error(), "another config") {
		t.Errorf("another config: %v", err)
	}
	cancel()
	if err := <-gathered; err == nil || !strings.Contains(err.Error(), "node 1 not here") {
		t.Errorf("the leader: %v", err)
	}
}

// TestNodesNeedDevices: the host trains alone, and says so before it waits for anyone.
func TestNodesNeedDevices(t *testing.T) {
	policy := filepath.Join(t.TempDir(), "policy")
	if err := randomPolicy(policy); err != nil {
		t.Fatal(err)
	}
	g := realRig(t, policy)
	g.nodes = nodes.Place{Nodes: 2, Leader: freeAddress(t), Patience: time.Minute}
	if _, err := g.run(); err == nil || !strings.Contains(err.Error(), "cpu trains on one node") {
		t.Errorf("cpu on two nodes: %v", err)
	}
}
