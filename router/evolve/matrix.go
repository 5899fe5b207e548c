package evolve

import (
	"math"

	"harness-s/rollout"
)

// Row is one harness of the success matrix.
type Row struct {
	Harness     string   `json:"harness"`
	Generation  int      `json:"generation"`  // 0: the base harness
	Wins        []int    `json:"wins"`        // [tasks]
	Tries       []int    `json:"tries"`       // [tasks]; broken attempts are not counted
	Broken      int      `json:"broken"`      // attempts that say nothing
	Success     float64  `json:"success"`     // wins / tries over all tasks, 0..1
	Solved      int      `json:"solved"`      // tasks with a success
	Gains       []string `json:"gains"`       // ids of tasks solved here and never under the base harness
	Regressions []string `json:"regressions"` // ids of tasks solved under the base harness and never here
}

// TaskEntry is a column of the matrix.
type TaskEntry struct {
	ID   string `json:"id"`
	Kind string `json:"kind"`
	// Cause is why the base harness fails it, by the analyst: of its first failed attempt, where no attempt succeeds.
	Cause string `json:"cause,omitempty"`
}

// Matrix is harness x validation task: paired attempts, the same seeds in each row.
type Matrix struct {
	Tasks    []TaskEntry `json:"tasks"`
	Attempts int         `json:"attempts"`
	Rows     []Row       `json:"rows"` // the base harness, then children in the order they were made
}

func newMatrix(tasks []rollout.Task, attempts int) Matrix {
	m := Matrix{Attempts: attempts, Rows: []Row{}}
	for _, t := range tasks {
		m.Tasks = append(m.Tasks, TaskEntry{ID: t.ID, Kind: t.Kind})
	}
	return m
}

// add appends the row of a harness; the first is the base's.
func (m *Matrix) add(id string, generation int, records []*rollout.Record) *Row {
	at := make(map[string]int, len(m.Tasks))
	for i, t := range m.Tasks {
		at[t.ID] = i
	}
	r := Row{Harness: id, Generation: generation, Wins: make([]int, len(m.Tasks)), Tries: make([]int, len(m.Tasks)), Gains: []string{}, Regressions: []string{}}
	for _, rec := range records {
		if rec.Status.Broken() {
			r.Broken++
			continue
		}
		i := at[rec.Task]
		r.Tries[i]++
		if rec.Success {
			r.Wins[i]++
		}
	}
	wins, tries := 0, 0
	for i, w := range r.Wins {
		wins, tries = wins+w, tries+r.Tries[i]
		if w > 0 {
			r.Solved++
		}
		if len(m.Rows) == 0 {
			continue
		}
		switch base := m.Rows[0].Wins[i]; {
		case w > 0 && base == 0:
			r.Gains = append(r.Gains, m.Tasks[i].ID)
		case w == 0 && base > 0 && r.Tries[i] > 0:
			r.Regressions = append(r.Regressions, m.Tasks[i].ID)
		}
	}
	r.Success = float64(wins) / math.Max(1, float64(tries))
	m.Rows = append(m.Rows, r)
	return &m.Rows[len(m.Rows)-1]
}

// measured says whether any attempt of the row was not broken.
func (r *Row) measured() bool {
	for _, n := range r.Tries {
		if n > 0 {
			return true
		}
	}
	return false
}

// joint counts the tasks that any row solved.
func (m *Matrix) joint() int {
	n := 0
	for i := range m.Tasks {
		for _, r := range m.Rows {
			if r.Wins[i] > 0 {
				n++
				break
			}
		}
	}
	return n
}

// share is a count of validation tasks as a fraction.
func (m *Matrix) share(tasks int) float64 {
	return float64(tasks) / math.Max(1, float64(len(m.Tasks)))
}

// candidates are the rows as Select takes them.
func (m *Matrix) candidates() []Cover {
	out := make([]Cover, len(m.Rows))
	for i, r := range m.Rows {
		c := Cover{ID: r.Harness, Success: r.Success, Solved: make([]bool, len(r.Wins))}
		for t, w := range r.Wins {
			c.Solved[t] = w > 0
		}
		out[i] = c
	}
	return out
}
