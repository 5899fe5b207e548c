//go:build cgo

package kernels

import (
	"fmt"
	"math"
	"testing"
)

// segments of rows with the given lengths.
func segments(lens ...int) Segments {
	cu := []int32{0}
	for _, n := range lens {
		cu = append(cu, cu[len(cu)-1]+int32(n))
	}
	return Segments{Cu: cu}
}

// edgeRows are the lengths around the conv's width and the chunk's, an empty row included.
var edgeRows = []int{1, 0, 2, 3, 63, 64, 65, 128, 17, 150}

// nearHeads compares got with want [T,heads,dim] head by head, so that a bad head cannot hide among good ones:
// the largest error of a head is at most tol of its largest value. tiny is the size under which a head counts as 0.
func nearHeads(t testing.TB, what string, got []float32, want []float64, heads, dim int, tol, tiny float64) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%s: %d values, want %d", what, len(got), len(want))
	}
	for h := range heads {
		worst, top := 0.0, tiny
		for i := h * dim; i < len(got); i += heads * dim {
			for j := i; j < i+dim; j++ {
				top = math.Max(top, math.Abs(want[j]))
				d := math.Abs(float64(got[j]) - want[j])
				if math.IsNaN(d) {
					t.Fatalf("%s: head %d: %v at %d, want %v", what, h, got[j], j, want[j])
				}
				worst = math.Max(worst, d)
			}
		}
		if worst > tol*top {
			t.Errorf("%s: head %d: off by %.3g of %.3g, relative %.3g > %.3g", what, h, worst, top, worst/top, tol)
		}
	}
}

// rowSlice is row r of a packed [T,width] array.
func rowSlice[E any](v []E, seg Segments, r, width int) []E {
	return v[int(seg.Cu[r])*width : int(seg.Cu[r+1])*width]
}

// separately runs op on each row alone and puts the outputs, all [T,width_i], together again.
func separately(seg Segments, ins [][]float32, inWidths, outWidths []int, op func(ins [][]float32, n int) [][]float32) [][]float32 {
	outs := make([][]float32, len(outWidths))
	for r := range seg.Rows() {
		row := make([][]float32, len(ins))
		for i := range ins {
			row[i] = rowSlice(ins[i], seg, r, inWidths[i])
		}
		for i, out := range op(row, int(seg.Cu[r+1]-seg.Cu[r])) {
			outs[i] = append(outs[i], out...)
		}
	}
	return outs
}

// checkRowsAlone wants equal bits from a packed batch and from its rows alone, and wants the rows beside a
// disturbed row to keep their bits.
func checkRowsAlone(r *rig, seg Segments, ins [][]float32, inWidths, outWidths []int, op func(seg Segments, ins [][]float32) [][]float32) {
	r.Helper()
	packed := op(seg, ins)
	alone := separately(seg, ins, inWidths, outWidths, func(row [][]float32, n int) [][]float32 {
		return op(segments(n), row)
	})
	for i := range packed {
		sameBits(r.TB, fmt.Sprintf("output %d, packed and alone", i), packed[i], alone[i])
	}
	odd := seg.Rows() / 2
	spoiled := make([][]float32, len(ins))
	for i := range ins {
		spoiled[i] = append([]float32(nil), ins[i]...)
		row := rowSlice(spoiled[i], seg, odd, inWidths[i])
		for j := range row {
			row[j] = float32(math.NaN())
		}
	}
	after := op(seg, spoiled)
	for i := range packed {
		for row := range seg.Rows() {
			if row != odd {
				sameBits(r.TB, fmt.Sprintf("output %d, row %d beside NaN", i, row),
					rowSlice(after[i], seg, row, outWidths[i]), rowSlice(packed[i], seg, row, outWidths[i]))
			}
		}
	}
}

// checkGradient compares a reference's gradient with central differences of f = <up, outputs> at a few places of x.
func checkGradient(t *testing.T, what string, x, grad []float64, f func() float64) {
	t.Helper()
	const h = 1e-5
	for i := 0; i < len(x); i += 1 + len(x)/37 {
		old := x[i]
		x[i] = old + h
		hi := f()
		x[i] = old - h
		lo := f()
		x[i] = old
		// Central differences err by h² f''' and by 1e-16·|f|/h, both below 1e-8 for values near 1.
		if num := (hi - lo) / (2 * h); math.Abs(num-grad[i]) > 2e-7*(1+math.Abs(num)) {
			t.Errorf("%s: gradient %d is %v, differences say %v", what, i, grad[i], num)
		}
	}
}

func dot64(a, b []float64) float64 {
	sum := 0.0
	for i := range a {
		sum += a[i] * b[i]
	}
	return sum
}
