package trainer

import (
	"bytes"
	"encoding/json"
	"math"
	"sort"
	"time"

	"harness-s/rollout"
	"harness-s/rollout/harness"
)

// metrics are one step's numbers by name (design names; eval/* beside them).
type metrics map[string]float64

// line is one object of metrics.jsonl: step first, then the names in order. NaN and infinities become null.
func (m metrics) line(step int) []byte {
	names := make([]string, 0, len(m))
	for n := range m {
		names = append(names, n)
	}
	sort.Strings(names)
	var b bytes.Buffer
	b.WriteString(`{"step":`)
	b.Write(number(float64(step)))
	for _, n := range names {
		key, _ := json.Marshal(n) // a string always marshals
		b.WriteByte(',')
		b.Write(key)
		b.WriteByte(':')
		b.Write(number(m[n]))
	}
	b.WriteByte('}')
	return b.Bytes()
}

func number(x float64) []byte {
	if math.IsNaN(x) || math.IsInf(x, 0) {
		return []byte("null")
	}
	data, err := json.Marshal(x)
	if err != nil {
		panic(err) // a finite number always marshals
	}
	return data
}

// timed adds the wall time of f, in seconds, to a metric.
func (m metrics) timed(name string, f func() error) error {
	start := time.Now()
	err := f()
	m[name] += time.Since(start).Seconds()
	return err
}

// mean accumulates an average; of nothing it is 0.
type mean struct {
	sum, sq float64
	n       int
}

func (a *mean) add(x float64) {
	a.sum += x
	a.sq += x * x
	a.n++
}

func (a *mean) value() float64 { return a.sum / math.Max(1, float64(a.n)) }

// std is the population standard deviation.
func (a *mean) std() float64 {
	v := a.value()
	return math.Sqrt(math.Max(0, a.sq/math.Max(1, float64(a.n))-v*v))
}

func toFloat(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// describeRollouts fills in what the step's attempts say: tokens, lengths, turns, faults.
func (m metrics) describeRollouts(records []*rollout.Record) {
	var length, turns, truncated mean
	for _, r := range records {
		switch r.Status {
		case rollout.EnvError:
			m["errors/env"]++
		case rollout.ServerError, rollout.Deadline:
			m["errors/server"]++
		}
		m["errors/parse"] += float64(r.Usage.ParseErrors)
		m["tokens/prompt"] += float64(r.Usage.PromptTokens)
		m["tokens/policy"] += float64(r.Usage.PolicyTokens)
		if r.Status.Broken() {
			continue
		}
		length.add(float64(r.Usage.PolicyTokens))
		m["length/max"] = math.Max(m["length/max"], float64(r.Usage.PolicyTokens))
		truncated.add(toFloat(r.Status != rollout.Completed))
		turns.add(float64(policyTurns(r)))
	}
	m["length/mean"], m["length/truncated"], m["turns/mean"] = length.value(), truncated.value(), turns.value()
}

func policyTurns(r *rollout.Record) int {
	n := 0
	for _, row := range r.Rows {
		n += len(row.TurnBounds)
	}
	return n
}

// describeGroups fills in what the groups say, before and after rescue.
func (m metrics) describeGroups(base, rescue, retained []group, mode string) {
	var h0, routed, rescued mean
	perSibling := map[string]*mean{}
	sibling := func(r *rollout.Record) *mean {
		if perSibling[r.Harness] == nil {
			perSibling[r.Harness] = &mean{}
		}
		return perSibling[r.Harness]
	}
	failed := 0
	for _, g := range base {
		failed += int(toFloat(g.failed()))
		m["group/dropped"] += float64(g.dropped)
		for _, r := range g.records {
			if r.Harness == harness.BaseID {
				h0.add(toFloat(r.Success))
			} else { // the mixture control
				sibling(r).add(toFloat(r.Success))
			}
		}
	}
	for _, g := range rescue {
		rescued.add(toFloat(g.successes() > 0))
		m["group/dropped"] += float64(g.dropped)
		for _, r := range g.records {
			sibling(r).add(toFloat(r.Success))
			routed.add(toFloat(r.Success))
		}
	}
	var reward, constant mean
	for _, g := range retained {
		constant.add(toFloat(g.constant()))
		for _, r := range g.records {
			reward.add(r.Reward)
		}
	}
	m["reward/mean"], m["reward/std"] = reward.value(), reward.std()
	m["success/h0"] = h0.value()
	for id, s := range perSibling {
		if id != harness.BaseID { // the resample control's attempts are not first attempts
			m["success/"+id] = s.value()
		}
	}
	if mode == ModeRouted && routed.n > 0 {
		m["success/routed"] = routed.value()
	}
	m["rescue/rate"] = float64(failed) / math.Max(1, float64(len(base)))
	if rescued.n > 0 {
		m["rescue/success"] = rescued.value()
	}
	m["group/constant"] = constant.value()
	m["group/contrast"] = 1 - constant.value()
}
