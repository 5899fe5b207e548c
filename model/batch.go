package model

import (
	"fmt"
	"math"

	"harness-s/kernels"
)

// Batch is packed rows: row i is Tokens[Cu[i]:Cu[i+1]]. Token t of a row is predicted from those before it in the
// row; the rows do not see each other.
type Batch struct {
	Tokens []int32
	Cu     []int32 // len = rows+1, Cu[0] = 0, strictly ascending
	// Want marks the tokens whose log-prob is asked for, len(Tokens); nil = all. Others cost no head work, have 0 in
	// Stats, and their coefficients are ignored whatever they hold.
	Want []bool
}

// Add appends a row; want is nil (all of it) or as long as tokens, the same for every row of the batch.
func (b *Batch) Add(tokens []int32, want []bool) {
	if len(b.Cu) == 0 {
		b.Cu = append(b.Cu, 0)
	}
	b.Tokens = append(b.Tokens, tokens...)
	b.Want = append(b.Want, want...)
	b.Cu = append(b.Cu, int32(len(b.Tokens)))
}

// Rows is the number of rows.
func (b *Batch) Rows() int { return max(len(b.Cu)-1, 0) }

// check says what is wrong with the batch, if anything.
func (b *Batch) check(vocab int) error {
	if len(b.Tokens) > math.MaxInt32 {
		return fmt.Errorf("batch of %d tokens, want at most %d", len(b.Tokens), math.MaxInt32)
	}
	if len(b.Cu) < 2 || b.Cu[0] != 0 || int(b.Cu[len(b.Cu)-1]) != len(b.Tokens) {
		return fmt.Errorf("batch of %d tokens: row bounds must run from 0 to that number over at least one row", len(b.Tokens))
	}
	if b.Want != nil && len(b.Want) != len(b.Tokens) {
		return fmt.Errorf("batch of %d tokens: %d want flags", len(b.Tokens), len(b.Want))
	}
	for row := range b.Rows() {
		lo, hi := b.Cu[row], b.Cu[row+1]
		if hi <= lo || int(hi) > len(b.Tokens) {
			return fmt.Errorf("batch row %d is empty", row)
		}
		if i := badToken(b.Tokens[lo:hi], vocab); i >= 0 {
			return fmt.Errorf("batch row %d, token %d: id %d is outside the vocabulary of %d", row, i, b.Tokens[int(lo)+i], vocab)
		}
	}
	return nil
}

// badToken is the index of the first id outside the vocabulary, or -1.
func badToken(tokens []int32, vocab int) int {
	for i, id := range tokens {
		if id < 0 || int(id) >= vocab {
			return i
		}
	}
	return -1
}

// wanted lists the places of the wanted tokens. A row's first token has no log-prob.
func (b *Batch) wanted() []int32 {
	var out []int32
	for row := range b.Rows() {
		for t := b.Cu[row] + 1; t < b.Cu[row+1]; t++ {
			if b.Want == nil || b.Want[t] {
				out = append(out, t)
			}
		}
	}
	return out
}

func (b *Batch) segments() kernels.Segments { return kernels.Segments{Cu: b.Cu} }

// positions counts from 0 in each row.
func (b *Batch) positions() []int32 {
	pos := make([]int32, len(b.Tokens))
	for row := range b.Rows() {
		for t := b.Cu[row]; t < b.Cu[row+1]; t++ {
			pos[t] = t - b.Cu[row]
		}
	}
	return pos
}
