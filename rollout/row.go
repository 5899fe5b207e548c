package rollout

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
)

// appendContext adds tokens that the policy did not sample.
func (r *Row) appendContext(tokens []int32) {
	r.Tokens = append(r.Tokens, tokens...)
	r.Mask = append(r.Mask, make([]uint8, len(tokens))...)
	r.Logprobs = append(r.Logprobs, make([]float32, len(tokens))...)
}

// appendPolicy adds one turn as the policy sampled it.
func (r *Row) appendPolicy(tokens []int32, logprobs []float32) {
	start := len(r.Tokens)
	r.Tokens = append(r.Tokens, tokens...)
	r.Logprobs = append(r.Logprobs, logprobs...)
	for range tokens {
		r.Mask = append(r.Mask, 1)
	}
	r.TurnBounds = append(r.TurnBounds, [2]int{start, len(r.Tokens)})
}

// trim cuts what follows the last policy token: it is no context of anything.
func (r *Row) trim() {
	end := 0
	if n := len(r.TurnBounds); n > 0 {
		end = r.TurnBounds[n-1][1]
	}
	r.Tokens, r.Mask, r.Logprobs = r.Tokens[:end], r.Mask[:end], r.Logprobs[:end]
}

// Validate checks the row's own rules: equal lengths, mask 1 exactly inside the turn bounds, the bounds in order,
// log-probs finite and at most 0 where the policy sampled and 0 elsewhere, ids not negative.
func (r *Row) Validate() error {
	n := len(r.Tokens)
	if len(r.Mask) != n || len(r.Logprobs) != n {
		return fmt.Errorf("%d tokens, %d mask entries, %d log-probs; want equal", n, len(r.Mask), len(r.Logprobs))
	}
	inside, end := make([]bool, n), 0
	for i, b := range r.TurnBounds {
		if b[0] < end || b[1] <= b[0] || b[1] > n {
			return fmt.Errorf("turn %d has bounds %v; %d tokens, the turn before ends at %d", i, b, n, end)
		}
		for t := b[0]; t < b[1]; t++ {
			inside[t] = true
		}
		end = b[1]
	}
	for t := range n {
		lp := float64(r.Logprobs[t])
		switch {
		case r.Tokens[t] < 0:
			return fmt.Errorf("token %d has the id %d", t, r.Tokens[t])
		case r.Mask[t] > 1 || (r.Mask[t] == 1) != inside[t]:
			return fmt.Errorf("token %d has mask %d but lies inside a policy turn: %v", t, r.Mask[t], inside[t])
		case math.IsNaN(lp) || math.IsInf(lp, 0) || lp > 0:
			return fmt.Errorf("token %d has log-prob %v", t, lp)
		case r.Mask[t] == 0 && lp != 0:
			return fmt.Errorf("token %d was not sampled but has log-prob %v", t, lp)
		}
	}
	return nil
}

// Validate checks every row, and that the status and the outcome agree.
func (r *Record) Validate() error {
	for i := range r.Rows {
		if err := r.Rows[i].Validate(); err != nil {
			return fmt.Errorf("rollout %s: row %d: %w", r.ID, i, err)
		}
	}
	if math.IsNaN(r.Reward) || math.IsInf(r.Reward, 0) {
		return fmt.Errorf("rollout %s: reward %v", r.ID, r.Reward)
	}
	if r.Success && r.Status != Completed {
		return fmt.Errorf("rollout %s: success with status %s", r.ID, r.Status)
	}
	return nil
}

// MarshalJSON writes log-probs as null where the policy did not sample. A float32 is written with the fewest digits
// that give the same float32 back.
func (r Row) MarshalJSON() ([]byte, error) {
	if len(r.Mask) != len(r.Tokens) || len(r.Logprobs) != len(r.Tokens) {
		return nil, errors.New("row: tokens, mask and log-probs differ in length")
	}
	b := make([]byte, 0, 16*len(r.Tokens)+64)
	b = append(b, `{"tokens":[`...)
	for t, id := range r.Tokens {
		b = strconv.AppendInt(comma(b, t), int64(id), 10)
	}
	b = append(b, `],"mask":[`...)
	for t, m := range r.Mask {
		b = strconv.AppendUint(comma(b, t), uint64(m), 10)
	}
	b = append(b, `],"logprobs":[`...)
	for t, lp := range r.Logprobs {
		b = comma(b, t)
		switch x := float64(lp); {
		case r.Mask[t] == 0:
			b = append(b, "null"...)
		case math.IsNaN(x) || math.IsInf(x, 0):
			return nil, fmt.Errorf("row: token %d has log-prob %v", t, x)
		default:
			b = strconv.AppendFloat(b, x, 'g', -1, 32)
		}
	}
	b = append(b, `],"turn_bounds":[`...)
	for i, x := range r.TurnBounds {
		b = fmt.Appendf(comma(b, i), "[%d,%d]", x[0], x[1])
	}
	return append(b, "]}"...), nil
}

func comma(b []byte, i int) []byte {
	if i > 0 {
		b = append(b, ',')
	}
	return b
}

// UnmarshalJSON reads what MarshalJSON wrote and refuses lists that do not fit together.
func (r *Row) UnmarshalJSON(data []byte) error {
	var in struct {
		Tokens     []int32    `json:"tokens"`
		Mask       []bit      `json:"mask"`
		Logprobs   []*float32 `json:"logprobs"`
		TurnBounds [][2]int   `json:"turn_bounds"`
	}
	if err := json.Unmarshal(data, &in); err != nil {
		return fmt.Errorf("row: %w", err)
	}
	n := len(in.Tokens)
	if len(in.Mask) != n || len(in.Logprobs) != n {
		return fmt.Errorf("row: %d tokens, %d mask entries, %d log-probs; want equal", n, len(in.Mask), len(in.Logprobs))
	}
	*r = Row{Tokens: in.Tokens, Mask: make([]uint8, n), Logprobs: make([]float32, n), TurnBounds: in.TurnBounds}
	for t := range n {
		r.Mask[t] = uint8(in.Mask[t])
		if lp := in.Logprobs[t]; (lp != nil) != (r.Mask[t] == 1) {
			return fmt.Errorf("row: token %d has mask %d but a log-prob: %v", t, r.Mask[t], lp != nil)
		} else if lp != nil {
			r.Logprobs[t] = *lp
		}
	}
	return nil
}

// bit is 0 or 1 in JSON. It is no uint8: encoding/json would take base64 for a list of those.
type bit uint16

func (b *bit) UnmarshalJSON(data []byte) error {
	if len(data) != 1 || data[0] != '0' && data[0] != '1' {
		return fmt.Errorf("mask entry %s; want 0 or 1", data)
	}
	*b = bit(data[0] - '0')
	return nil
}
