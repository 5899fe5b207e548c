package trainer

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"harness-s/rollout"
	"harness-s/rollout/harness"
)

// Names that an evaluation takes besides ids of the pool.
const (
	siblingsName = "siblings" // every sibling, each by itself
	routedName   = "routed"   // the harness that the router ranks first for the task, H0 included
	bestName     = "best"     // the one sibling that does best over all validation tasks
	rankPrefix   = "rank"     // rank2, rank3, ...: the harness that the router ranks so for the task
)

// column is one name of an evaluation, with its harness for each held-out task.
type column struct {
	name  string
	specs []*harness.Spec // [tasks]
}

// rankOf is the place in the router's ranking that a name stands for, from 1; 0 where it stands for none.
func rankOf(name string) int {
	if name == routedName {
		return 1
	}
	digits, ok := strings.CutPrefix(name, rankPrefix)
	if n, err := strconv.Atoi(digits); ok && err == nil && n >= 2 && digits == strconv.Itoa(n) {
		return n
	}
	return 0
}

// asksRouter says whether the router decides what one of the names stands for.
func asksRouter(names ...string) bool {
	return slices.ContainsFunc(names, func(n string) bool { return n == bestName || rankOf(n) > 0 })
}

// checkNames says what is wrong with the names of an evaluation, before anything runs.
func (r *run) checkNames(names []string) error {
	for _, name := range names {
		if name == siblingsName || name == bestName && len(r.pool.Siblings()) > 0 {
			continue
		}
		if rank := rankOf(name); rank > 0 && rank <= len(r.pool.Specs) {
			continue
		}
		if _, ok := r.pool.Get(name); !ok {
			return fmt.Errorf("no harness %q in a pool of %d: want h0, siblings, routed, best, rank2, rank3, ... or an id of the pool", name, len(r.pool.Specs))
		}
	}
	return nil
}

// columns turns names into harnesses; the router is asked once a task.
func (s *stepRun) columns(ctx context.Context, names []string) ([]column, error) {
	if err := s.checkNames(names); err != nil {
		return nil, err
	}
	tasks := s.evalTasks()
	var rankings [][]string
	var out []column
	for _, name := range names {
		switch rank := rankOf(name); {
		case name == siblingsName:
			for _, spec := range s.pool.Siblings() {
				out = append(out, column{spec.ID, slices.Repeat([]*harness.Spec{spec}, len(tasks))})
			}
		case rank > 0:
			if rankings == nil {
				var err error
				if rankings, err = s.rankings(ctx, tasks); err != nil {
					return nil, err
				}
			}
			c := column{name: name}
			for i := range tasks {
				spec, err := s.specs([]string{rankings[i][rank-1]}, nil)
				if err != nil {
					return nil, fmt.Errorf("route task %s: %w", tasks[i].ID, err)
				}
				c.specs = append(c.specs, spec[0])
			}
			s.describeRouting(name, c)
			out = append(out, c)
		default:
			id := name
			if name == bestName {
				var err error
				if id, err = s.parts.Router.Best(); err != nil {
					return nil, fmt.Errorf("best sibling: %w", err)
				}
			}
			spec, err := s.specs([]string{id}, nil)
			if err != nil {
				return nil, err
			}
			out = append(out, column{name, slices.Repeat(spec, len(tasks))})
		}
	}
	return unique(out), nil
}

// rankings is the router's order of the whole pool for each task.
func (s *stepRun) rankings(ctx context.Context, tasks []rollout.Task) ([][]string, error) {
	if err := s.parts.Router.Prepare(ctx, tasks); err != nil {
		return nil, err
	}
	out := make([][]string, len(tasks))
	for i, t := range tasks {
		ids, err := s.parts.Router.Ranking(ctx, t)
		if err != nil {
			return nil, fmt.Errorf("route task %s: %w", t.ID, err)
		}
		if len(ids) != len(s.pool.Specs) {
			return nil, fmt.Errorf("route task %s: the router ranks %d harnesses of %d", t.ID, len(ids), len(s.pool.Specs))
		}
		out[i] = ids
	}
	return out, nil
}

// describeRouting fills in how often H0 is the router's first choice.
func (s *stepRun) describeRouting(name string, c column) {
	if name != routedName {
		return
	}
	var h0 mean
	for _, spec := range c.specs {
		h0.add(toFloat(spec.ID == harness.BaseID))
	}
	s.out["eval/h0_share"] = h0.value()
}

// unique drops columns whose name stands before already.
func unique(columns []column) []column {
	seen := map[string]bool{}
	return slices.DeleteFunc(columns, func(c column) bool {
		twice := seen[c.name]
		seen[c.name] = true
		return twice
	})
}
