package evolve

import (
	"errors"
	"fmt"

	"harness-s/model/chat"
	"harness-s/rollout"
	"harness-s/rollout/harness"
)

// Options say what to evolve, with whom and how far.
type Options struct {
	Dir  string        // run folder: exists, locked by the caller
	Seed int64         // draws the training tasks
	Base *harness.Spec // H0

	Tools      []chat.Tool                   // the environment's
	Train      []rollout.Task                // fresh ones are taken from here for each generation
	Validation []rollout.Task                // every harness is measured on all of them
	Secrets    func(t rollout.Task) []string // texts of a task that no harness may hold; nil: task ids alone

	Size    Size
	Limit   Limit
	Actor   Actor
	Analyst Analyst
	Editor  Editor
	Meter   Meter // what Analyst and Editor spend; nil: nothing

	Chunk    int      // rollouts made between two writes, what a crash can cost; 0: 256
	Progress Progress // nil: none
}

// Size is how far an evolution goes.
type Size struct {
	Generations int // rounds of parents and children
	Tasks       int // fresh training tasks a generation, the same for each parent
	Attempts    int // validation attempts at each task under each harness, at least MinAttempts
	Failures    int // failed attempts of one parent that are analysed, spread over tasks; 0: all
	Directions  int // repair directions a parent and generation
	Children    int // valid children wanted of a direction and parent
	Parents     int // of the next generation
	Pool        int // siblings in the pool at most
	MaxBytes    int // of a child as YAML
	// Control, where true, gives the base at the end as many attempts at each validation task as all harnesses of the pool had
	// together: what more attempts alone would have solved.
	Control bool
}

// MinAttempts is the least number of validation attempts: with fewer, chance decides which sibling repairs what.
const MinAttempts = 3

// MaxEdits is how often an editor may try to get children of one direction and parent through the gate.
const MaxEdits = 3

// Limit is what an evolution may cost. A zero limit is none. Where one is reached, what is there is frozen.
type Limit struct {
	Rollouts int `json:"rollouts"` // attempts of the actor
	Calls    int `json:"calls"`    // requests to language models
	Tokens   int `json:"tokens"`   // their prompt and reply tokens
}

// Cost is what something has cost.
type Cost struct {
	Rollouts int `json:"rollouts"`
	Calls    int `json:"calls"`
	Tokens   int `json:"tokens"`
}

func (c Cost) plus(o Cost) Cost {
	return Cost{c.Rollouts + o.Rollouts, c.Calls + o.Calls, c.Tokens + o.Tokens}
}

func (c Cost) minus(o Cost) Cost {
	return Cost{c.Rollouts - o.Rollouts, c.Calls - o.Calls, c.Tokens - o.Tokens}
}

// Meter counts requests and tokens; *llm.Budget is one. What an earlier process of the same run spent is charged to it before the run goes on.
type Meter interface {
	Spent() (calls, tokens int)
	Charge(calls, tokens int)
}

// Progress is told how far an evolution is.
type Progress interface {
	Note(line string)                                // something to keep
	Phase(what string, rollouts int) func(ended int) // a long phase begins; what it returns is called after each attempt
}

type noProgress struct{}

func (noProgress) Note(string)                 {}
func (noProgress) Phase(string, int) func(int) { return func(int) {} }

// Check names what an evolution with these options cannot do.
func (o *Options) Check() error {
	s := o.Size
	switch {
	case o.Base == nil || o.Base.ID != harness.BaseID:
		return errors.New("evolve: the base harness must have the id " + harness.BaseID)
	case o.Actor == nil || o.Analyst == nil || o.Editor == nil:
		return errors.New("evolve: an actor, an analyst and an editor are needed")
	case s.Generations < 1 || s.Tasks < 1 || s.Directions < 1 || s.Children < 1 || s.Parents < 1 || s.Pool < 1:
		return fmt.Errorf("evolve: %+v: every size must be at least 1", s)
	case s.Attempts < MinAttempts:
		return fmt.Errorf("evolve: %d validation attempts; at least %d are needed to tell a repair from luck", s.Attempts, MinAttempts)
	case len(o.Validation) == 0:
		return errors.New("evolve: no validation tasks")
	}
	if need := s.Generations * s.Tasks; need > len(o.Train) {
		return fmt.Errorf("evolve: %d generations of %d fresh training tasks need %d; there are %d: lower evolve.tasks or raise data.train",
			s.Generations, s.Tasks, need, len(o.Train))
	}
	if first := o.firstCost(); o.Limit.Rollouts > 0 && o.Limit.Rollouts < first {
		return fmt.Errorf("evolve.budget.rollouts: %d; the base harness alone takes %d (training tasks, and validation tasks x attempts)", o.Limit.Rollouts, first)
	}
	if err := o.Base.Validate(o.Tools); err != nil {
		return fmt.Errorf("evolve: base harness: %w", err)
	}
	return nil
}

// firstCost is the rollouts before the first child.
func (o *Options) firstCost() int { return o.Size.Tasks + len(o.Validation)*o.Size.Attempts }
