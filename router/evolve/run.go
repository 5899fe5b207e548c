package evolve

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"time"

	"harness-s/rollout"
	"harness-s/rollout/harness"
)

// rolloutsName is the folder of the records.
const rolloutsName = "rollouts"

// Why an evolution ended.
const (
	EndedDone   = "generations" // all generations were made
	EndedBudget = "budget"      // another unit of work would have been beyond a limit
	EndedPool   = "pool"        // the pool is full
)

// engine is one evolution at work.
type engine struct {
	Options
	journal *journal
	gate    *gate
	matrix  Matrix
	spent   Cost // rollouts alone; requests and tokens are the meter's
	asked   asked
	began   time.Time

	unsolved []*rollout.Record // of each validation task that the base never solves, the first failed attempt

	order   []rollout.Task  // training tasks, shuffled
	pool    []*harness.Spec // the base, then children in the order they were made
	nodes   []Node          // of the pool, in its order
	parents []*harness.Spec // of the next generation
	history []Generation
	labels  []LabelEntry
	refused []Rejected
	dropped Dropped
	control *Control
	ended   string
}

// Run evolves a pool and freezes it in o.Dir. It goes on where an earlier Run with the same options stopped in that
// folder, however it stopped, and comes to the same pool. When ctx ends it returns ctx's error.
func Run(ctx context.Context, o Options) (Summary, error) {
	if o.Meter == nil {
		o.Meter = noMeter{}
	}
	if o.Progress == nil {
		o.Progress = noProgress{}
	}
	if o.Chunk <= 0 {
		o.Chunk = 256
	}
	if err := o.Check(); err != nil {
		return Summary{}, err
	}
	if err := os.MkdirAll(filepath.Join(o.Dir, rolloutsName), 0o755); err != nil {
		return Summary{}, fmt.Errorf("evolve: %w", err)
	}
	j, err := openJournal(o.Dir)
	if err != nil {
		return Summary{}, err
	}
	o.Meter.Charge(j.cost.Calls, j.cost.Tokens)
	e := &engine{Options: o, journal: j, gate: newGate(&o), matrix: newMatrix(o.Validation, o.Size.Attempts)}
	e.began = time.Now()
	s, err := e.run(ctx)
	err = errors.Join(err, j.session(o.Meter, e.elapsed()), j.close())
	if err != nil {
		return Summary{}, err
	}
	return s, nil
}

func (e *engine) run(ctx context.Context) (Summary, error) {
	e.order = shuffled(e.Train, e.Seed)
	if err := e.measureBase(ctx); err != nil {
		return Summary{}, err
	}
	for g := 1; g <= e.Size.Generations && e.ended == ""; g++ {
		if err := e.generation(ctx, g); err != nil {
			return Summary{}, err
		}
		if e.journal.idle() {
			continue // all of it was read back: the folder has this and more
		}
		if err := e.freeze(); err != nil {
			return Summary{}, err
		}
		e.tell(g)
	}
	if e.ended == "" {
		e.ended = EndedDone
	}
	if len(e.pool) == 1 && e.asked.last != nil {
		return Summary{}, fmt.Errorf("evolve: no child was made, and a resume would read the same answers back; begin anew with another --run, and with another evolve.llm.model where that is the cause; the last fault: %w", e.asked.last)
	}
	if err := e.causes(ctx); err != nil {
		return Summary{}, err
	}
	if err := e.measureControl(ctx); err != nil {
		return Summary{}, err
	}
	return e.finish()
}

// measureControl gives the base the attempts that its siblings had, where that is asked for and paid for. They count on from
// its own, so that no seed is used twice.
// firstFailures picks the first failed attempt at each task that the row, the base's, never solved.
// causes has the analyst say why the base fails validation tasks, so that a report can tell which child repairs which cause.
// Nothing is made from it: no editor sees validation tasks.
// shuffled is a permutation of the tasks by seed.
func shuffled(tasks []rollout.Task, seed int64) []rollout.Task {
	out := slices.Clone(tasks)
	r := rand.New(rand.NewPCG(uint64(seed), 0x65766f6c7665))
	r.Shuffle(len(out), func(i, j int) { out[i], out[j] = out[j], out[i] })
	return out
}

// fresh are the training tasks of generation g, in no other's.
func (e *engine) fresh(g int) []rollout.Task {
	return e.order[(g-1)*e.Size.Tasks : g*e.Size.Tasks]
}

// measureBase runs H0 on the validation tasks.
// generation makes and measures the children of the parents, and chooses the next parents.
func (e *engine) generation(ctx context.Context, g int) error {
	before := e.used()
	gen := Generation{
		Number: g, Parents: ids(e.parents), Tasks: taskIDs(e.fresh(g)), Failures: []int{}, Children: []string{},
		Causes: map[string]map[string]int{}, Rejected: map[string]int{},
	}
	pairs, err := e.analyse(ctx, &gen)
	if err == nil {
		err = e.edit(ctx, &gen, pairs)
	}
	if errors.Is(err, errBudget) {
		if e.asked.out || !e.affords(len(e.parents)*e.Size.Tasks+e.childCost()) {
			e.ended = EndedBudget
		}
		err = nil
	}
	if err != nil {
		return fmt.Errorf("evolve: generation %d: %w", g, err)
	}
	if err := e.validate(ctx, &gen, pairs); err != nil {
		return fmt.Errorf("evolve: generation %d: %w", g, err)
	}
	e.parents = e.choose()
	gen.Next, gen.JointCoverage = ids(e.parents), e.matrix.share(e.matrix.joint())
	gen.Cost = e.used().minus(before)
	gen.Pairs = report(pairs)
	e.history = append(e.history, gen)
	switch {
	case e.ended != "":
	case len(e.pool)-1 >= e.Size.Pool:
		e.ended = EndedPool
	}
	return nil
}

// choose picks the next parents: the set of given size in the pool that together solves most validation tasks.
func (e *engine) choose() []*harness.Spec {
	var out []*harness.Spec
	for _, id := range Select(e.matrix.candidates(), e.Size.Parents) {
		out = append(out, e.pool[slices.IndexFunc(e.pool, func(s *harness.Spec) bool { return s.ID == id })])
	}
	return out
}

// validate measures the children that passed the gate, paired with H0: same tasks, same seeds.
// take puts a measured child into the pool.
// cost is what all of the evolution has cost so far, earlier processes included.
func (e *engine) cost() Cost {
	calls, tokens := e.Meter.Spent()
	return Cost{Rollouts: e.spent.Rollouts, Calls: calls, Tokens: tokens}
}

// used is what the evolution took to come here. Unlike cost it leaves out what earlier processes did after this point, and
// requests of theirs that came to nothing.
func (e *engine) used() Cost {
	c := e.journal.usedNow()
	c.Rollouts = e.spent.Rollouts
	return c
}

// tell says how a generation went, and how long the rest may take.
func (e *engine) tell(g int) {
	gen := e.history[len(e.history)-1]
	refused := 0
	for _, n := range gen.Rejected {
		refused += n
	}
	line := fmt.Sprintf("generation %d/%d: %d valid children (%d candidates refused), joint coverage %.3f, %d siblings, %d rollouts",
		g, e.Size.Generations, gen.Valid, refused, gen.JointCoverage, len(e.pool)-1, e.spent.Rollouts)
	if c := e.cost(); c.Calls > 0 {
		line += fmt.Sprintf(", %d requests, %d tokens", c.Calls, c.Tokens)
	}
	if e.ended == "" && g < e.Size.Generations {
		took := time.Since(e.began)
		line += fmt.Sprintf("; about %s left", (took / time.Duration(g) * time.Duration(e.Size.Generations-g)).Round(time.Second))
	}
	e.Progress.Note(line)
}

// elapsed is the seconds of this process.
func (e *engine) elapsed() float64 { return time.Since(e.began).Seconds() }

func ids(specs []*harness.Spec) []string {
	out := make([]string, len(specs))
	for i, s := range specs {
		out[i] = s.ID
	}
	return out
}

func taskIDs(tasks []rollout.Task) []string {
	out := make([]string, len(tasks))
	for i, t := range tasks {
		out[i] = t.ID
	}
	return out
}
