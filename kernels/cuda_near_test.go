//go:build cgo

package kernels

import (
	"math"
	"testing"
)

// tokenCounts are odd ends of warps, blocks and runs.
var tokenCounts = []int{0, 1, 2, 3, 63, 64, 65, 257}

// nearAct compares activations with a float64 value: within tol·(scale+|want|), and in bf16 half a unit of the last place.
func (r *deviceRig) nearAct(what string, got Buffer, want []float64, tol, scale float64) {
	r.Helper()
	r.nearStored(what, r.getAct(got, len(want)), want, tol, scale)
}

func (r *deviceRig) nearStored(what string, got []float32, want []float64, tol, scale float64) {
	r.Helper()
	if r.dtype == F32 {
		near(r.TB, what, got, want, tol, scale)
		return
	}
	for i, w := range want {
		allowed := math.Abs(w)/256 + tol*(scale+math.Abs(w))
		if d := math.Abs(float64(got[i]) - w); !(d <= allowed) {
			r.Fatalf("%s: at %d: %v, want %v (off by %.3g, allowed %.3g)", what, i, got[i], w, d, allowed)
		}
	}
}

// outputs are downloaded results, fp32 each, to compare bit for bit.
type outputs [][]float32

func sameOutputs(t testing.TB, what string, got, want outputs) {
	t.Helper()
	for i := range got {
		sameBits(t, what, got[i], want[i])
	}
}

// part is rows lo to hi of v [rows,width].
func part[E any](v []E, lo, hi, width int) []E { return v[lo*width : hi*width] }

// rowsAlone wants the rows of op over a whole batch to have the bits of op over rows 0..n-1 and over each of three rows
// alone, and to keep them when another row is NaN. ins [T,inWidths[i]] are activations; op's outputs are [T,outWidths[i]].
func (r *deviceRig) rowsAlone(T int, ins [][]float32, inWidths, outWidths []int, op func(T int, ins [][]float32) outputs) {
	r.Helper()
	whole := op(T, ins)
	slice := func(v [][]float32, widths []int, lo, hi int) [][]float32 {
		out := make([][]float32, len(v))
		for i := range v {
			out[i] = part(v[i], lo, hi, widths[i])
		}
		return out
	}
	for _, at := range [][2]int{{0, 1}, {T / 2, T/2 + 1}, {T - 1, T}, {0, T / 3}, {T / 3, T}} {
		got := op(at[1]-at[0], slice(ins, inWidths, at[0], at[1]))
		sameOutputs(r.TB, "rows alone", got, slice(whole, outWidths, at[0], at[1]))
	}
	spoiled := make([][]float32, len(ins))
	for i := range ins {
		spoiled[i] = append([]float32(nil), ins[i]...)
		for j := range part(spoiled[i], T/2, T/2+1, inWidths[i]) {
			spoiled[i][T/2*inWidths[i]+j] = nan32
		}
	}
	got := op(T, spoiled)
	sameOutputs(r.TB, "before a NaN row", slice(got, outWidths, 0, T/2), slice(whole, outWidths, 0, T/2))
	sameOutputs(r.TB, "after a NaN row", slice(got, outWidths, T/2+1, T), slice(whole, outWidths, T/2+1, T))
}

// underSeeds wants the same bits from several runs, each on a device of its own; the simulator runs blocks, threads and
// queued work in another order each time.
func underSeeds(t *testing.T, dtype DType, op func(r *deviceRig) outputs) {
	t.Helper()
	var first outputs
	for _, seed := range []string{"1", "2", "77"} {
		t.Run("seed"+seed, func(t *testing.T) {
			t.Setenv("HARNESS_S_SIM_SEED", seed)
			out := op(newDeviceRig(t, dtype))
			if first == nil {
				first = out
			}
			sameOutputs(t, "another order", out, first)
		})
	}
}
