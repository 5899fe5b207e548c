// Package evolve makes a pool of sibling harnesses from a base harness: it runs the base on training tasks, finds what
// made attempts fail, edits the harness against one cause at a time, keeps the children that are valid, measures them
// on validation tasks, and lets those that together solve most be the parents of the next generation.
//
// Start at Run. Causes are found by an Analyst and edits made by an Editor; both come embedded (deterministic, for the SQL
// environment) and as users of a language model behind an HTTP endpoint.
package evolve

import (
	"context"

	"harness-s/rollout"
	"harness-s/rollout/harness"
)

// Label is the root cause of one failed attempt.
type Label struct {
	Rollout string            `json:"rollout"` // id of the record
	Task    string            `json:"task"`
	Kind    string            `json:"kind"`            // of the task
	Cause   string            `json:"cause"`           // short name: lower-case letters, digits, -
	Turn    int               `json:"turn"`            // index into Record.Turns of the earliest wrong decision; -1: not in a turn
	Why     string            `json:"why"`             // one sentence
	Facts   map[string]string `json:"facts,omitempty"` // parameters an edit may use; never text of tables, answers or ids
}

// Direction is one thing to repair: failures with one cause.
type Direction struct {
	ID          string            `json:"id"`          // short name, unique in a generation: lower-case letters, digits, -
	Description string            `json:"description"` // what goes wrong, one sentence; becomes harness.Spec.Direction
	Evidence    []string          `json:"evidence"`    // ids of the failed rollouts, in order
	Tasks       int               `json:"tasks"`       // distinct tasks among them
	Facts       map[string]string `json:"facts,omitempty"`
	Examples    []string          `json:"examples,omitempty"` // sentences about single failures, for an editor that reads
}

// Analyst finds root causes. What it returns is checked: an unknown rollout id is dropped and counted.
type Analyst interface {
	// Label names the cause of each failed record. A record it can say nothing about has no label.
	Label(ctx context.Context, parent *harness.Spec, failed []*rollout.Record) ([]Label, error)
	// Directions groups labels into at most max distinct directions, the one with most tasks first.
	Directions(ctx context.Context, parent *harness.Spec, labels []Label, max int) ([]Direction, error)
}

// Editor makes children of a harness. It is called from several goroutines.
type Editor interface {
	// Edit proposes at most n children of parent that repair d. attempt counts from 0; problems are what was wrong with the
	// candidates of the attempt before (nil at first). Fewer than n, or none, is no error.
	Edit(ctx context.Context, parent *harness.Spec, d Direction, n, attempt int, problems []string) ([]Candidate, error)
}

// Candidate is a proposed child. ID, Parent and Direction of the spec are set by Run.
type Candidate struct {
	Spec     *harness.Spec // nil: the editor could make none that is valid
	Problem  string        // then why
	Manifest Manifest
}

// Manifest says what a child changes.
type Manifest struct {
	Child      string   `json:"child"`
	Parent     string   `json:"parent"`
	Direction  string   `json:"direction"`  // Direction.ID
	Components []string `json:"components"` // prompt | tools | memory | rules: what differs from the parent, no more
	Changes    []string `json:"changes"`    // one sentence each
	Why        string   `json:"why"`
	Expect     string   `json:"expect"` // what it should fix
	Evidence   []string `json:"evidence"`
}

// Actor makes attempts, one record a job in the jobs' order; trainer.Actor is one. It is called from several goroutines.
type Actor interface {
	Collect(ctx context.Context, jobs []rollout.Job, ended func(n int)) ([]*rollout.Record, error)
}
