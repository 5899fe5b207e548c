package trainer

import (
	"harness-s/rollout"
	"harness-s/trainer/loss"
)

// group is the attempts at one task in one step: the unit of advantages.
type group struct {
	task      rollout.Task
	records   []*rollout.Record // not broken, by attempt
	dropped   int               // attempts that stayed broken
	rescued   bool              // records are rescue attempts
	advantage []float64         // of each record
}

// intoGroups sorts records, which come in the order of the tasks' jobs, into groups.
func intoGroups(tasks []rollout.Task, records []*rollout.Record) []group {
	groups := make([]group, len(tasks))
	index := map[string]int{}
	for i, t := range tasks {
		groups[i].task = t
		index[t.ID] = i
	}
	for _, r := range records {
		g := &groups[index[r.Task]]
		if r.Status.Broken() {
			g.dropped++
		} else {
			g.records = append(g.records, r)
		}
	}
	return groups
}

// failed says that every attempt failed, by the binary outcome: neither the spread of the rewards nor a shaped
// reward. A group with a dropped attempt is not known to have failed.
func (g group) failed() bool {
	return g.dropped == 0 && len(g.records) > 0 && g.successes() == 0
}

func (g group) successes() int {
	n := 0
	for _, r := range g.records {
		if r.Success {
			n++
		}
	}
	return n
}

// constant says that all rewards are equal, so that there is no advantage to learn from.
func (g group) constant() bool {
	for _, r := range g.records {
		if r.Reward != g.records[0].Reward {
			return false
		}
	}
	return true
}

// replace puts each rescue group in the place of its task's base group. One of which nothing came back
// unbroken leaves the base group.
func replace(base, rescue []group) []group {
	retained := append([]group(nil), base...)
	index := map[string]int{}
	for i, g := range base {
		index[g.task.ID] = i
	}
	for _, g := range rescue {
		if len(g.records) == 0 {
			continue
		}
		i := index[g.task.ID]
		for _, r := range retained[i].records {
			r.Replaced = true
		}
		g.rescued = true
		retained[i] = g
	}
	return retained
}

// setAdvantages fills in every group's advantages, and notes them in the records.
func setAdvantages(groups []group, estimate loss.AdvantageFunc, eps float64) {
	for i := range groups {
		rewards := make([]float64, len(groups[i].records))
		for j, r := range groups[i].records {
			rewards[j] = r.Reward
		}
		groups[i].advantage = estimate(rewards, eps)
		for j, r := range groups[i].records {
			r.Advantage = &groups[i].advantage[j]
		}
	}
}
