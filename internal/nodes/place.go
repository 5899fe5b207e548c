// Package nodes is how the processes of one run find each other: their places by environment variables, and one TCP
// connection from each of them to the first, over which they exchange messages.
package nodes

import (
	"fmt"
	"net"
	"strconv"
	"time"
)

// Place is one process's place among those of a run, one a node.
type Place struct {
	Nodes    int           // of the run; 1, or 0: this process alone
	Node     int           // this one; node 0 leads
	Leader   string        // host:port where node 0 listens
	Token    string        // shared secret; processes with another one do not join
	Patience time.Duration // how long nodes wait for each other at the start
}

// Several says whether the run has other nodes.
func (p Place) Several() bool { return p.Nodes > 1 }

const (
	defaultPort     = 29400
	slurmPorts      = 1000 // jobs on one machine get ports of their own, as a rule
	defaultPatience = 10 * time.Minute
	MaxNodes        = 1024 // bound on the nodes of one training
)

// variables of the environment, with what Slurm calls the same: of the step, else of the job.
var (
	countNames = []string{"NNODES", "SLURM_STEP_NUM_NODES", "SLURM_NNODES"}
	nodeNames  = []string{"NODE_RANK", "SLURM_NODEID"}
	hostNames  = []string{"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"}
)

// TokenVariable holds the secret.
const TokenVariable = "HARNESS_S_CLUSTER_TOKEN"

// FromEnv reads the place from NNODES, NODE_RANK, MASTER_ADDR and MASTER_PORT. Under Slurm's srun what is not set comes
// from Slurm. getenv is os.Getenv.
func FromEnv(getenv func(string) string) (Place, error) {
	p := Place{Nodes: 1, Patience: defaultPatience, Token: getenv(TokenVariable)}
	name, n, err := number(getenv, countNames, 1, MaxNodes)
	if err != nil {
		return Place{}, err
	}
	if name == "" {
		if getenv("NODE_RANK") != "" {
			return Place{}, fmt.Errorf("NODE_RANK is set but NNODES is not: set NNODES to the number of nodes")
		}
		return p, nil
	}
	if p.Nodes = n; n == 1 {
		return p, nil
	}
	if name, p.Node, err = number(getenv, nodeNames, 0, n-1); err != nil {
		return Place{}, err
	}
	if name == "" {
		return Place{}, fmt.Errorf("%s is %d but NODE_RANK is not set: give each node its number from 0 to %d", first(getenv, countNames), n, n-1)
	}
	if name == "SLURM_NODEID" {
		if err := oneTask(getenv); err != nil {
			return Place{}, err
		}
	}
	p.Leader, err = leader(getenv)
	return p, err
}

// Count is the number of nodes that the environment names, 1 where it names none.
func Count(getenv func(string) string) (int, error) {
	name, n, err := number(getenv, countNames, 1, MaxNodes)
	if name == "" && err == nil {
		n = 1
	}
	return n, err
}

// first is the first of the variables that is set.
func first(getenv func(string) string, names []string) string {
	for _, name := range names {
		if getenv(name) != "" {
			return name
		}
	}
	return ""
}

// number reads the first of the variables that is set; name is empty where none is.
func number(getenv func(string) string, names []string, lo, hi int) (name string, n int, err error) {
	if name = first(getenv, names); name == "" {
		return "", 0, nil
	}
	n, err = strconv.Atoi(getenv(name))
	if err != nil || n < lo || n > hi {
		return "", 0, fmt.Errorf("%s is %q, want a number from %d to %d", name, getenv(name), lo, hi)
	}
	return name, n, nil
}

// oneTask refuses several Slurm tasks a node: one process drives all devices of its node.
func oneTask(getenv func(string) string) error {
	if id := getenv("SLURM_LOCALID"); id != "" && id != "0" {
		return fmt.Errorf("SLURM_LOCALID is %s: start one process a node (srun --ntasks-per-node=1); it drives all of the node's devices", id)
	}
	return nil
}

// leader is the address of node 0.
func leader(getenv func(string) string) (string, error) {
	host := getenv("MASTER_ADDR")
	if host == "" {
		list := first(getenv, hostNames)
		if list == "" {
			return "", fmt.Errorf("MASTER_ADDR is not set: set it to the host of node 0")
		}
		var err error
		if host, err = firstHost(getenv(list)); err != nil {
			return "", fmt.Errorf("%s: %w; set MASTER_ADDR", list, err)
		}
	}
	port, err := leaderPort(getenv)
	if err != nil {
		return "", err
	}
	return net.JoinHostPort(host, strconv.Itoa(port)), nil
}

func leaderPort(getenv func(string) string) (int, error) {
	name, port, err := number(getenv, []string{"MASTER_PORT"}, 1, 65535)
	if err != nil || name != "" {
		return port, err
	}
	job, err := strconv.Atoi(getenv("SLURM_JOB_ID"))
	if err != nil || job < 0 {
		return defaultPort, nil
	}
	return defaultPort + job%slurmPorts, nil
}
