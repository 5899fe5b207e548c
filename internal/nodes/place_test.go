package nodes

import (
	"strings"
	"testing"
)

func TestFromEnv(t *testing.T) {
	slurm := func(more string) string {
		return "SLURM_NNODES=4 SLURM_NODEID=2 SLURM_JOB_NODELIST=gpu[07-09,12] SLURM_JOB_ID=123456 " + more
	}
	for _, c := range []struct {
		env    string
		nodes  int
		node   int
		leader string
		err    string // part of it
	}{
		{env: "", nodes: 1},
		{env: "NNODES=1 NODE_RANK=5", nodes: 1},
		{env: "NNODES=2 NODE_RANK=1 MASTER_ADDR=a", nodes: 2, node: 1, leader: "a:29400"},
		{env: "NNODES=2 NODE_RANK=0 MASTER_ADDR=fd00::1 MASTER_PORT=99", nodes: 2, leader: "[fd00::1]:99"},
		{env: slurm(""), nodes: 4, node: 2, leader: "gpu07:29856"},
		{env: slurm("SLURM_STEP_NUM_NODES=3 SLURM_STEP_NODELIST=b-[2,5]"), nodes: 3, node: 2, leader: "b-2:29856"},
		{env: slurm("NNODES=1"), nodes: 1},
		{env: slurm("MASTER_ADDR=me MASTER_PORT=7"), nodes: 4, node: 2, leader: "me:7"},
		{env: slurm("SLURM_LOCALID=1"), err: "--ntasks-per-node=1"},
		{env: "NODE_RANK=1", err: "NNODES is not"},
		{env: "NNODES=2", err: "NODE_RANK is not set"},
		{env: "NNODES=2 NODE_RANK=2 MASTER_ADDR=a", err: "from 0 to 1"},
		{env: "NNODES=two", err: "NNODES"},
		{env: "NNODES=0", err: "NNODES"},
		{env: "NNODES=2 NODE_RANK=0", err: "MASTER_ADDR"},
		{env: "NNODES=2 NODE_RANK=0 MASTER_ADDR=a MASTER_PORT=70000", err: "MASTER_PORT"},
		{env: "NNODES=2 NODE_RANK=0 SLURM_JOB_NODELIST=a[", err: "brackets"},
	} {
		set := map[string]string{}
		for _, v := range strings.Fields(c.env) {
			name, value, _ := strings.Cut(v, "=")
			set[name] = value
		}
		p, err := FromEnv(func(name string) string { return set[name] })
		if c.err != "" {
			if err == nil || !strings.Contains(err.Error(), c.err) {
				t.Errorf("%s: error %v, want one with %q", c.env, err, c.err)
			}
			continue
		}
		if err != nil || p.Nodes != c.nodes || p.Node != c.node || p.Leader != c.leader || p.Several() != (c.nodes > 1) {
			t.Errorf("%s: %+v, %v", c.env, p, err)
		}
	}
}

func TestFirstHost(t *testing.T) {
	for list, want := range map[string]string{
		"a": "a", "a,b": "a", "n[1-3]": "n1", "n[08,10-12],m": "n08", "r[1-2]n[5,6]": "r1n5", "n[3]-ib,x": "n3-ib",
		"": "", ",a": "", "n[": "", "n]": "", "n[]": "", "n[1[2]]": "", "a b": "",
	} {
		if got, err := firstHost(list); got != want || (err == nil) != (want != "") {
			t.Errorf("%q: %q, %v; want %q", list, got, err, want)
		}
	}
}
