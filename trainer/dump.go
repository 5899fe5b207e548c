package trainer

import "strconv"

// dump is a minibatch that gave a loss or gradient that is not finite, for people to look into.
type dump struct {
	Step      int       `json:"step"`
	Epoch     int       `json:"epoch"`
	Minibatch int       `json:"minibatch"`
	Loss      string    `json:"loss"` // text: JSON has no NaN
	GradNorm  string    `json:"grad_norm"`
	BadGrads  int       `json:"nonfinite_gradients"`
	Rows      []dumpRow `json:"rows"`
}

type dumpRow struct {
	Rollout   string   `json:"rollout"`
	Advantage float64  `json:"advantage"`
	Tokens    []int32  `json:"tokens"`
	Mask      []int    `json:"mask"`
	Old       []string `json:"old"`
	Sampler   []string `json:"sampler"`
}

func text(x float64) string { return strconv.FormatFloat(x, 'g', -1, 64) }

func dumpRows(m *minibatch) []dumpRow {
	var out []dumpRow
	for _, rows := range m.micro {
		for _, r := range rows {
			d := dumpRow{Rollout: r.id, Advantage: m.rollouts[r.rollout].Advantage, Tokens: r.tokens}
			for t := range r.tokens {
				d.Mask = append(d.Mask, int(r.mask[t]))
				if r.old != nil {
					d.Old = append(d.Old, text(float64(r.old[t])))
				}
				d.Sampler = append(d.Sampler, text(float64(r.sampler[t])))
			}
			out = append(out, d)
		}
	}
	return out
}
