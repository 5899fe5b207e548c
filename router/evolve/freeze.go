package evolve

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"harness-s/internal/atomicfile"
	"harness-s/internal/strictyaml"
	"harness-s/rollout/harness"
)

// Files of an evolution's folder, beside config.yaml, journal.jsonl and rollouts/.
const (
	PoolName     = "pool"           // h0.yaml and the children
	LineageName  = "lineage.json"   // Lineage
	MatrixName   = "matrix.json"    // Matrix
	RejectedName = "rejected.jsonl" // one Rejected a line
	LabelsName   = "labels.jsonl"   // one LabelEntry a line
	SummaryName  = "summary.json"   // Summary
)

// Lineage is how the pool came about.
type Lineage struct {
	Seed        int64        `json:"seed"`
	Nodes       []Node       `json:"nodes"` // the base, then children in the order they were made
	Generations []Generation `json:"generations"`
}

// Node is one harness of the pool.
type Node struct {
	ID         string     `json:"id"`
	Parent     string     `json:"parent,omitempty"`
	Generation int        `json:"generation"` // 0: the base
	Hash       string     `json:"hash"`       // of the content
	Valid      bool       `json:"valid"`      // passed the gate and was measured; what did not is in rejected.jsonl
	Direction  *Direction `json:"direction,omitempty"`
	Manifest   *Manifest  `json:"manifest,omitempty"`
	Edit       int        `json:"edit"`    // which attempt of the editor made it, from 0
	Success    float64    `json:"success"` // mean on validation attempts, 0..1
	Solved     int        `json:"solved"`  // validation tasks with a success
}

// Generation is one round.
type Generation struct {
	Number        int                       `json:"number"` // from 1
	Parents       []string                  `json:"parents"`
	Tasks         []string                  `json:"tasks"`    // ids of the fresh training tasks
	Failures      []int                     `json:"failures"` // failed attempts of each parent
	Causes        map[string]map[string]int `json:"causes"`   // labels by parent and cause
	Pairs         []PairEntry               `json:"directions"`
	Children      []string                  `json:"children"` // valid ones
	Valid         int                       `json:"valid"`
	Rejected      map[string]int            `json:"rejected"`       // candidates by reason
	JointCoverage float64                   `json:"joint_coverage"` // share of validation tasks solved by any harness up to here
	Next          []string                  `json:"next_parents"`
	Cost          Cost                      `json:"cost"`
}

// PairEntry is one direction of one parent, and what came of it.
type PairEntry struct {
	Parent    string    `json:"parent"`
	Direction Direction `json:"direction"`
	Children  []string  `json:"children"` // passed the gate
	Refused   int       `json:"refused"`  // candidates that did not
}

// LabelEntry is a label and whose failure it is about.
type LabelEntry struct {
	Generation int    `json:"generation"`
	Parent     string `json:"parent"`
	Label
}

// Rejected is a candidate that did not pass.
type Rejected struct {
	Candidate  string   `json:"candidate"` // the id it would have had
	Generation int      `json:"generation"`
	Parent     string   `json:"parent"`
	Direction  string   `json:"direction"`
	Edit       int      `json:"edit"` // attempt of the editor, from 0
	Reason     string   `json:"reason"`
	Detail     string   `json:"detail"`
	Spec       string   `json:"spec"` // its YAML, or JSON where it is no valid spec
	Manifest   Manifest `json:"manifest"`
}

// Dropped counts what analysts said that could not be used.
type Dropped struct {
	Labels       int `json:"labels"`       // of no failure of the parent, twice, or without a proper cause
	Evidence     int `json:"evidence"`     // rollouts that were not labelled
	Directions   int `json:"directions"`   // without a proper name or evidence
	Descriptions int `json:"descriptions"` // that gave a task away
	Facts        int `json:"facts"`        // that gave a task away
}

// Summary is summary.json.
type Summary struct {
	ValidChildren int            `json:"valid_children"`
	H0Success     float64        `json:"h0_success"`     // mean success of validation attempts under the base, 0..1
	H0Coverage    float64        `json:"h0_coverage"`    // share of validation tasks with a success under it
	JointCoverage float64        `json:"joint_coverage"` // share of validation tasks solved by any pool member
	Control       *Control       `json:"control,omitempty"`
	Best          Best           `json:"best"` // the harness with the greatest mean success
	Generations   int            `json:"generations"`
	Ended         string         `json:"ended"` // generations | budget | pool
	Candidates    int            `json:"candidates"`
	Rejected      map[string]int `json:"rejected"` // by reason
	Faults        int            `json:"faults"`   // requests to the analyst or the editor that failed
	Dropped       Dropped        `json:"dropped"`
	Rollouts      int            `json:"rollouts"`
	Calls         int            `json:"calls"` // requests to language models
	Tokens        int            `json:"tokens"`
	Attempts      int            `json:"attempts"` // validation attempts a task
	Tasks         int            `json:"tasks"`    // validation tasks
	WallS         float64        `json:"wall_s"`   // of the processes that ended in order
	Seed          int64          `json:"seed"`
}

// Best is the harness that does best alone.
type Best struct {
	Harness  string  `json:"harness"`
	Success  float64 `json:"success"`  // mean, 0..1
	Coverage float64 `json:"coverage"` // share of validation tasks with a success
}

// Control is what the base alone solves with as many attempts at each task as the whole pool had.
type Control struct {
	Attempts int     `json:"attempts"` // at each validation task
	Coverage float64 `json:"coverage"` // share of validation tasks with a success
}

func report(pairs []*pair) []PairEntry {
	out := []PairEntry{}
	for _, p := range pairs {
		e := PairEntry{Parent: p.parent.ID, Direction: p.direction, Children: []string{}, Refused: p.refused}
		for _, c := range p.children {
			e.Children = append(e.Children, c.spec.ID)
		}
		out = append(out, e)
	}
	return out
}

// freeze writes the pool as it stands, and how it came about. It is called after each generation; a crash between two files
// leaves some of the generation before, and the resumed run writes all of them again.
func (e *engine) freeze() error {
	dir := filepath.Join(e.Dir, PoolName)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("freeze: %w", err)
	}
	for _, s := range e.pool {
		if err := put(filepath.Join(dir, s.ID+".yaml"), s.YAML()); err != nil {
			return fmt.Errorf("freeze: %w", err)
		}
	}
	for _, f := range []struct {
		name string
		data func() ([]byte, error)
	}{
		{MatrixName, func() ([]byte, error) { return json.Marshal(e.matrix) }},
		{RejectedName, func() ([]byte, error) { return lines(e.refused) }},
		{LabelsName, func() ([]byte, error) { return lines(e.labels) }},
		{LineageName, func() ([]byte, error) {
			return json.MarshalIndent(Lineage{Seed: e.Seed, Nodes: e.nodes, Generations: e.history}, "", " ")
		}},
	} {
		data, err := f.data()
		if err == nil {
			err = put(filepath.Join(e.Dir, f.name), data)
		}
		if err != nil {
			return fmt.Errorf("freeze %s: %w", f.name, err)
		}
	}
	return nil
}

// put writes a file that does not have this content yet.
func put(path string, data []byte) error {
	if was, err := os.ReadFile(path); err == nil && bytes.Equal(was, data) {
		return nil
	}
	return atomicfile.Write(path, data)
}

// lines is one JSON object a line.
func lines[T any](list []T) ([]byte, error) {
	var b bytes.Buffer
	for _, v := range list {
		line, err := strictyaml.Marshal(v)
		if err != nil {
			return nil, err
		}
		b.Write(append(line, '\n'))
	}
	return b.Bytes(), nil
}

// finish checks the frozen pool as others will load it, and writes the summary.
func (e *engine) finish() (Summary, error) {
	if err := e.freeze(); err != nil {
		return Summary{}, err
	}
	if err := e.sweep(); err != nil {
		return Summary{}, fmt.Errorf("evolve: %w", err)
	}
	if _, err := harness.LoadPool(filepath.Join(e.Dir, PoolName)); err != nil {
		return Summary{}, fmt.Errorf("evolve: the frozen pool does not load: %w", err)
	}
	s := e.summary()
	data, err := json.MarshalIndent(s, "", "  ")
	if err == nil {
		err = atomicfile.Write(filepath.Join(e.Dir, SummaryName), append(data, '\n'))
	}
	if err != nil {
		return Summary{}, fmt.Errorf("evolve: %w", err)
	}
	return s, nil
}

// sweep removes specs that a longer evolution left in the folder: this one was resumed with smaller limits.
func (e *engine) sweep() error {
	specs, err := filepath.Glob(filepath.Join(e.Dir, PoolName, "*.yaml"))
	if err != nil {
		return err
	}
	for _, path := range specs {
		stem := strings.TrimSuffix(filepath.Base(path), ".yaml")
		if slices.ContainsFunc(e.pool, func(s *harness.Spec) bool { return s.ID == stem }) {
			continue
		}
		if err := os.Remove(path); err != nil {
			return err
		}
	}
	return nil
}

func (e *engine) summary() Summary {
	base, cost := e.matrix.Rows[0], e.cost()
	s := Summary{
		ValidChildren: len(e.pool) - 1, H0Success: base.Success, H0Coverage: e.matrix.share(base.Solved),
		JointCoverage: e.matrix.share(e.matrix.joint()), Control: e.control,
		Generations: len(e.history), Ended: e.ended,
		Candidates: len(e.pool) - 1 + len(e.refused), Rejected: map[string]int{}, Faults: e.asked.faults, Dropped: e.dropped,
		Rollouts: cost.Rollouts, Calls: cost.Calls, Tokens: cost.Tokens,
		Attempts: e.matrix.Attempts, Tasks: len(e.matrix.Tasks), Seed: e.Seed,
		WallS: e.journal.seconds + e.elapsed(),
	}
	for i, r := range e.matrix.Rows {
		if i == 0 || r.Success > s.Best.Success {
			s.Best = Best{r.Harness, r.Success, e.matrix.share(r.Solved)}
		}
	}
	for _, r := range e.refused {
		s.Rejected[r.Reason]++
	}
	return s
}
