// Package taskgen makes the quickstart's task families: small tables of invented words and short English questions
// over them, with the traps that a naive agent falls into.
//
// Start at New. A task is a pure function of (options, split, index). Table names, entities and column codes of the
// validation and test splits are in no training task, and tables of demonstrations are in no split.
package taskgen

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"

	"harness-s/rollout"
	"harness-s/rollout/env/sqlenv"
)

// Kinds of tasks.
const (
	Count   = "count"   // how many rows have C > v
	Largest = "largest" // which row has the largest (or smallest) C
	Lookup  = "lookup"  // C of an entity
	Update  = "update"  // set C of an entity
	Insert  = "insert"  // add a row
	Join    = "join"    // C, in a second table, of what a link column of the first names
	List    = "list"    // the names of all rows with C > v
	Empty   = "empty"   // a count, look-up or list that finds nothing
)

// Kinds are all kinds in a fixed order.
func Kinds() []string { return []string{Count, Largest, Lookup, Update, Insert, Join, List, Empty} }

// Probs are the chances of the traps, each where its kind allows it.
type Probs struct {
	Opaque float64 // columns are codes that only the catalogue explains
	Cut    float64 // count, list: the result is longer than what is shown
	Dirty  float64 // lookup, update, join: the stored name has blanks around it or capitals
	Quote  float64 // a name needs quoting: it has a space or an apostrophe, or is a reserved word
}

// DefaultProbs follow the trial in which rescue training was found to work.
var DefaultProbs = Probs{Opaque: 0.3, Cut: 0.45, Dirty: 0.3, Quote: 0.15}

// DefaultMix are the kinds' weights.
func DefaultMix() map[string]float64 {
	return map[string]float64{Count: 4, Largest: 3, Lookup: 3, Update: 3, Insert: 2, Join: 2, List: 2, Empty: 1}
}

// Options of a generator. Zero values take the defaults.
type Options struct {
	Seed     uint64
	Env      string             // environment name in the tasks; "" = "sql"
	MaxRows  int                // rows of a result shown; 0 = 5
	MinTable int                // rows of a table, 0 = 10
	MaxTable int                // 0 = 14
	Mix      map[string]float64 // weight of each kind; nil = DefaultMix
	Probs    *Probs             // nil = DefaultProbs
	Val      int                // tasks of the val split; 0 = 200
	Test     int                // tasks of the test split; 0 = 200
	NoCount  bool               // answer changes with DBBench's "[]" instead of the number of rows changed
}

// Source generates tasks. It is safe for concurrent use.
type Source struct {
	opt   Options
	kinds []string  // with weight
	upTo  []float64 // running sums of the weights
}

var _ sqlenv.Source = (*Source)(nil)

// New checks the options.
func New(opt Options) (*Source, error) {
	def := func(p *int, v int) {
		if *p == 0 {
			*p = v
		}
	}
	def(&opt.MaxRows, 5)
	def(&opt.MinTable, 10)
	def(&opt.MaxTable, 14)
	def(&opt.Val, 200)
	def(&opt.Test, 200)
	if opt.Env == "" {
		opt.Env = "sql"
	}
	if opt.Mix == nil {
		opt.Mix = DefaultMix()
	}
	if opt.Probs == nil {
		p := DefaultProbs
		opt.Probs = &p
	}
	s := &Source{opt: opt}
	if err := s.check(); err != nil {
		return nil, fmt.Errorf("task generator: %w", err)
	}
	return s, nil
}

func (s *Source) check() error {
	o := s.opt
	switch {
	case o.MaxRows < 2 || o.MaxRows > 20:
		return fmt.Errorf("%d rows shown, want 2 to 20", o.MaxRows)
	case o.MinTable < o.MaxRows+2 || o.MaxTable < o.MinTable || o.MaxTable > 60:
		return fmt.Errorf("tables of %d to %d rows, want at least %d (two more than are shown) and at most 60", o.MinTable, o.MaxTable, o.MaxRows+2)
	case o.Val < 1 || o.Test < 1:
		return errors.New("the val and test splits need at least one task")
	}
	for _, p := range []float64{o.Probs.Opaque, o.Probs.Cut, o.Probs.Dirty, o.Probs.Quote} {
		if !(p >= 0 && p <= 1) {
			return fmt.Errorf("a trap's chance of %v is not in 0..1", p)
		}
	}
	sum := 0.0
	for _, k := range Kinds() {
		if w := o.Mix[k]; w > 0 {
			sum += w
			s.kinds = append(s.kinds, k)
			s.upTo = append(s.upTo, sum)
		} else if w < 0 || w != w {
			return fmt.Errorf("kind %s has weight %v", k, w)
		}
	}
	for k := range o.Mix {
		if _, known := DefaultMix()[k]; !known {
			return fmt.Errorf("there is no kind %q", k)
		}
	}
	if sum == 0 {
		return errors.New("no kind has a weight")
	}
	return nil
}

// Len counts a split's tasks; train and demo have no end.
func (s *Source) Len(split string) int {
	switch split {
	case Val:
		return s.opt.Val
	case Test:
		return s.opt.Test
	case Train, Demo:
		return 0
	}
	panic("taskgen: unknown split " + split)
}

// Task is the i-th task of a split.
func (s *Source) Task(split string, i int) rollout.Task {
	if n := s.Len(split); i < 0 || n > 0 && i >= n {
		panic(fmt.Sprintf("taskgen: task %d of split %s, which has %d", i, split, n))
	}
	t := s.Make(split, i)
	return rollout.Task{
		ID: split + "-" + strconv.Itoa(i), Env: s.opt.Env, Kind: t.Kind, Split: split, Data: t,
		Vars: map[string]string{"question": t.Question, "table": t.Table, "kind": t.Kind},
	}
}

// Make is Task's payload alone, for demonstrations.
func (s *Source) Make(split string, i int) *Task {
	s.Len(split)
	var key [16]byte
	binary.LittleEndian.PutUint64(key[:], s.opt.Seed)
	binary.LittleEndian.PutUint64(key[8:], uint64(i))
	sum := sha256.Sum256(append([]byte("taskgen 1 "+split+" "), key[:]...))
	b := &builder{
		Rand: rand.New(rand.NewPCG(binary.LittleEndian.Uint64(sum[:]), binary.LittleEndian.Uint64(sum[8:]))),
		opt:  s.opt, split: split, used: map[string]bool{},
	}
	x := b.Float64() * s.upTo[len(s.upTo)-1]
	kind := s.kinds[len(s.kinds)-1]
	for k, up := range s.upTo {
		if x < up {
			kind = s.kinds[k]
			break
		}
	}
	return b.build(kind)
}

// Traps says what a naive agent will trip over.
type Traps struct{ Opaque, Cut, Dirty, Quote bool }

// Any says whether there is one.
func (t Traps) Any() bool { return t.Opaque || t.Cut || t.Dirty || t.Quote }

// Names lists the traps that are set.
func (t Traps) Names() []string {
	out := []string{}
	for _, n := range []struct {
		on   bool
		name string
	}{{t.Opaque, "opaque"}, {t.Cut, "cut"}, {t.Dirty, "dirty"}, {t.Quote, "quote"}} {
		if n.on {
			out = append(out, n.name)
		}
	}
	return out
}

// Cell is a value that a task sets: the concept it is asked by, the column it is stored in.
type Cell struct {
	Concept, Column string
	Value           int64
}

// Task is a generated problem with all that a scripted demonstration needs.
type Task struct {
	Kind     string
	Form     string // the shape of the question: equals Kind, but for Empty it is Count, Lookup or List
	Question string
	Traps    Traps

	Table     string // the table of the question's rows; of a join the one with the link
	Other     string // join: the table with the value
	Concept   string // the word asked for ("price")
	Column    string // the column it is stored in: the same word, or a code
	Link      string // join: the column of Table that holds a name of Other
	Op        string // count, list: ">" or "<"
	Threshold int64  // count, list
	Smallest  bool   // largest: the smallest is asked for
	Entity    string // the name as the question writes it
	Stored    string // the name as the table holds it; "" when it is not there
	Value     int64  // update: the new value
	Cells     []Cell // insert: the other cells of the new row

	Gold    []string // SQL that solves the task on this database, one statement a call
	Answers []string // what to commit; ["done"] after a change

	tables   []sqlenv.Table
	expected []sqlenv.Table // tables after a change
	view     sqlenv.View
}

var _ sqlenv.Problem = (*Task)(nil)

// Tables are the task's tables; every column carries its meaning as comment.
func (t *Task) Tables() []sqlenv.Table { return t.tables }

// View shows few rows in SQLite's own dialect.
func (t *Task) View() sqlenv.View { return t.view }

// Changes says that the task is graded by the tables' state.
func (t *Task) Changes() bool { return t.Kind == Update || t.Kind == Insert }

// Grade is strict: the answers by sqlenv.MatchAnswers, a change by all tables row for row.
func (t *Task) Grade(ctx context.Context, f sqlenv.Final) (rollout.Grade, error) {
	g := rollout.Grade{Detail: map[string]any{"kind": t.Kind, "traps": t.Traps.Names()}}
	if !t.Changes() {
		g.Success = sqlenv.MatchAnswers(f.Answers, t.Answers)
		g.Detail["answers"], g.Detail["gold"] = f.Answers, t.Answers
	} else {
		ok, reason, err := t.stateMatches(ctx, f)
		if err != nil {
			return rollout.Grade{}, err
		}
		g.Success = ok
		if reason != "" {
			g.Detail["reason"] = reason
		}
	}
	if g.Success {
		g.Reward = 1
	}
	return g, nil
}

func (t *Task) stateMatches(ctx context.Context, f sqlenv.Final) (ok bool, reason string, err error) {
	for _, want := range t.expected {
		cols, rows, err := f.Table(ctx, want.Name)
		if errors.Is(err, sqlenv.ErrGone) || errors.Is(err, sqlenv.ErrTooBig) {
			return false, fmt.Sprintf("table %s: %v", want.Name, err), nil
		}
		if err != nil {
			return false, "", err
		}
		names := make([]string, len(want.Columns))
		for i, c := range want.Columns {
			names[i] = c.Name
		}
		if sqlenv.Canonical(cols, rows) != sqlenv.Canonical(names, want.Rows) {
			return false, fmt.Sprintf("table %s is not as asked", want.Name), nil
		}
	}
	return true, "", nil
}

// GoldAnswers is what to commit; ["done"] after a change.
func (t *Task) GoldAnswers() []string { return t.Answers }
