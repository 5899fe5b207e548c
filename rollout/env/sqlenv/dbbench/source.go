package dbbench

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"path/filepath"
	"sort"
	"strconv"
	"strings"

	"harness-s/rollout"
	"harness-s/rollout/env/sqlenv"
)

// Splits are the shares of tables that go to validation and test; the rest trains.
type Splits struct{ Val, Test float64 }

// DefaultSplits keep a fifth of the tables for test and a tenth for validation.
var DefaultSplits = Splits{Val: 0.1, Test: 0.2}

// Source serves a file's rows as tasks, split by table: no table is in two splits.
type Source struct {
	tasks map[string][]rollout.Task
}

var _ sqlenv.Source = (*Source)(nil)

// NewSource loads a file. env is the environment's name in the tasks ("" = "dbbench"). Where a split would be empty (few tables), that is an error.
func NewSource(path, env string, sp Splits) (*Source, error) {
	if sp.Val < 0 || sp.Test < 0 || sp.Val+sp.Test >= 1 {
		return nil, fmt.Errorf("dbbench splits: val %v and test %v must be at least 0 and leave something to train", sp.Val, sp.Test)
	}
	rows, err := LoadRows(path)
	if err != nil {
		return nil, err
	}
	if env == "" {
		env = "dbbench"
	}
	stem := strings.TrimSuffix(filepath.Base(path), filepath.Ext(path))
	s := &Source{tasks: map[string][]rollout.Task{"train": nil, "val": nil, "test": nil}}
	group := tableGroups(rows)
	for i, r := range rows {
		split := sp.of(group[i])
		s.tasks[split] = append(s.tasks[split], newTask(r, stem, env, split))
	}
	for split, share := range map[string]float64{"train": 1, "val": sp.Val, "test": sp.Test} {
		if share > 0 && len(s.tasks[split]) == 0 {
			return nil, fmt.Errorf("%s: no table falls into the %s split; give more rows or other shares", path, split)
		}
	}
	return s, nil
}

func newTask(r *Row, stem, env, split string) rollout.Task {
	return rollout.Task{
		ID: stem + "-" + strconv.Itoa(r.Index), Env: env, Kind: r.Kind, Split: split, Data: &Problem{Row: r},
		Vars: map[string]string{
			"question": strings.TrimSuffix(r.Question(), "\n"), "table": r.Tabs[0].Name, "kind": r.Kind,
			"description": r.Description, "add_description": r.Addition, "evidence": r.Evidence,
		},
	}
}

// of maps a name to its split by a hash, so that it stays where it is when rows are added.
func (sp Splits) of(name string) string {
	sum := sha256.Sum256([]byte(name))
	x := float64(binary.BigEndian.Uint64(sum[:8])>>11) / (1 << 53)
	switch {
	case x < sp.Test:
		return "test"
	case x < sp.Test+sp.Val:
		return "val"
	}
	return "train"
}

// tableGroups names for each row the set of tables it is tied to, through rows that use several: the first name of
// the set in sorted order.
func tableGroups(rows []*Row) []string {
	parent := map[string]string{}
	var find func(string) string
	find = func(x string) string {
		if p, ok := parent[x]; ok && p != x {
			parent[x] = find(p)
			return parent[x]
		}
		return x
	}
	for _, r := range rows {
		names := make([]string, len(r.Tabs))
		for i, t := range r.Tabs {
			names[i] = find(strings.ToLower(t.Name))
		}
		sort.Strings(names)
		for _, n := range names {
			parent[n] = names[0]
		}
	}
	out := make([]string, len(rows))
	for i, r := range rows {
		out[i] = find(strings.ToLower(r.Tabs[0].Name))
	}
	return out
}

// Task is the i-th row of the split.
func (s *Source) Task(split string, i int) rollout.Task { return s.split(split)[i] }

// Len counts the split's rows.
func (s *Source) Len(split string) int { return len(s.split(split)) }

// IDs lists the split's task ids, to be recorded with a run.
func (s *Source) IDs(split string) []string {
	out := make([]string, 0, s.Len(split))
	for _, t := range s.split(split) {
		out = append(out, t.ID)
	}
	return out
}

func (s *Source) split(name string) []rollout.Task {
	tasks, ok := s.tasks[name]
	if !ok {
		panic("dbbench: unknown split " + name)
	}
	return tasks
}
