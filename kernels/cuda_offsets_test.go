//go:build cgo && linux

package kernels

import (
	"errors"
	"testing"

	"harness-s/cuda"
)

// farOp is an op over rows of activations, whose rows must not depend on how far down they lie.
type farOp struct {
	name    string
	in, out []int // widths of its inputs and outputs
	run     func(r *deviceRig, T int, in, out []Buffer)
}

var farShape = AttnShape{Hq: 2, Hk: 1, D: 16, Rotary: 8, Theta: 1e4, Eps: 1e-6}

// farOps are ops of at most 64 values a row: 2^25 rows of an input are 2^31 values.
var farOps = []farOp{
	{"swiglu", []int{64, 64}, []int{64}, func(r *deviceRig, T int, in, out []Buffer) { r.SwiGLU(out[0], in[0], in[1], T*64) }},
	{"swiglu backward", []int{64, 64, 64}, []int{64, 64}, func(r *deviceRig, T int, in, out []Buffer) {
		r.SwiGLUBackward(out[0], out[1], in[0], in[1], in[2], T*64)
	}},
	{"add", []int{64}, []int{64}, func(r *deviceRig, T int, in, out []Buffer) { r.Add(out[0], in[0], T*64) }},
	{"rmsnorm", []int{64, 64}, []int{64, 64}, func(r *deviceRig, T int, in, out []Buffer) {
		rstd, w := r.fill(T, 0), r.fill(64, 0.5)
		r.AddRMSNorm(out[0], rstd, in[0], in[1], w, T, 64, 1e-6)
		r.RMSNormBackward(out[1], r.fill(64, 0), in[1], in[0], rstd, w, T, 64)
	}},
	{"gated norm", []int{64, 64, 64}, []int{64, 64, 64}, func(r *deviceRig, T int, in, out []Buffer) {
		w := r.fill(32, 0.5)
		r.GatedRMSNorm(out[0], in[0], in[1], w, 2*T, 32, 1e-6)
		r.GatedRMSNormBackward(out[1], out[2], r.fill(32, 0), in[2], in[0], in[1], w, 2*T, 32, 1e-6)
	}},
	{"output gate", []int{32, 64, 32}, []int{32, 32, 64}, func(r *deviceRig, T int, in, out []Buffer) {
		r.OutputGate(out[0], in[0], in[1], T, farShape)
		r.OutputGateBackward(out[1], out[2], in[2], in[0], in[1], T, farShape)
	}},
	{"rope", []int{64, 16, 32, 16}, []int{32, 16, 64, 16}, func(r *deviceRig, T int, in, out []Buffer) {
		w, pos := r.fill(16, 0.5), r.fill(T, 0)
		r.QKNormRope(out[0], out[1], in[0], in[1], w, w, pos, T, farShape)
		r.QKNormRopeBackward(out[2], out[3], r.fill(16, 0), r.fill(16, 0), in[2], in[3], in[0], in[1], w, w, pos, T, farShape)
	}},
	{"conv", []int{64, 64}, []int{64, 64}, func(r *deviceRig, T int, in, out []Buffer) {
		w := Weight{Compute: r.fillAct(64 * 4), Out: 64, In: 4}
		r.fillWords(w.Compute, 0x3f003f00) // 0.5, twice
		seg := segments(T-farTail, farTail)
		r.ConvSiLU(out[0], in[0], w, seg)
		r.ConvSiLUBackward(out[1], r.fill(64*4, 0), in[1], in[0], w, seg)
	}},
}

// farTail is the rows that hold numbers; all before are 0.
const farTail = 5

// TestDeviceFarRows: rows beyond 2^31 values of a buffer have the bits of rows at its start. On the simulator, which
// would take hours, the same runs over few rows.
func TestDeviceFarRows(t *testing.T) {
	rows := 3000
	if testDevice() == "cuda" {
		rows = 1<<25 + 3000
	}
	for _, op := range farOps {
		t.Run(op.name, func(t *testing.T) {
			r := newDeviceRig(t, BF16)
			var in, out, nearIn, nearOut []Buffer
			alloc := func(width int, data bool) (far, near Buffer) {
				far, err := r.Alloc("far", r.Words(rows*width))
				if errors.Is(err, cuda.ErrOutOfMemory) {
					t.Skip(err)
				} else if err != nil {
					t.Fatal(err)
				}
				v := make([]float32, farTail*width)
				if data {
					v = r.normal(farTail*width, 1)
				}
				r.setAct(r.tail(far, rows, width), v)
				return far, r.act(v)
			}
			for _, w := range op.in {
				f, n := alloc(w, true)
				in, nearIn = append(in, f), append(nearIn, n)
			}
			for _, w := range op.out {
				f, n := alloc(w, false)
				out, nearOut = append(out, f), append(nearOut, n)
			}
			op.run(r, rows, in, out)
			op.run(r, farTail, nearIn, nearOut)
			for i, w := range op.out {
				sameBits(t, op.name, r.getAct(r.tail(out[i], rows, w), farTail*w), r.getAct(nearOut[i], farTail*w))
			}
			for _, b := range append(in, out...) {
				r.Free(b)
			}
		})
	}
}

// tail is the last farTail rows of a buffer of activations.
func (r *deviceRig) tail(b Buffer, rows, width int) Buffer {
	return b.Slice(r.Words((rows-farTail)*width), r.Words(farTail*width))
}

// TestDeviceFarOffsets: rows picked from beyond 2^32 values, and partial sums that lie far apart. On the simulator a
// device address is one of this process: buffers are made of address space alone.
func TestDeviceFarOffsets(t *testing.T) {
	if testDevice() != "sim" {
		t.Skip("needs the simulator's sparse memory")
	}
	eachDType(t, func(t *testing.T, dtype DType) {
		r := newDeviceRig(t, dtype)
		host := newRig(t, "base", 1) // for its sparse memory
		const H = farWidth + 8
		row := r.normal(H, 1)
		ids := r.ints([]int32{farRow})
		sparse := func() Buffer { return host.sparse(r.Words((farRow + 1) * H)) }
		place := func(b Buffer, v []float32) { // no transfer of the driver's knows the address
			v32 := make([]int32, r.Words(H))
			r.DownloadInts(v32, r.act(v))
			copy(words[int32](b.Slice(r.Words(farRow*H), r.Words(H))), v32)
		}
		w := Weight{Compute: sparse(), Out: farRow + 1, In: H}
		place(w.Compute, row)
		y := r.fillAct(H)
		r.Embed(y, ids, w, 1)
		sameBits(t, "embed", r.getAct(y, H), row)
		y = r.fillAct(H)
		r.Gather(y, w.Compute, ids, 1, farRow+1, H)
		sameBits(t, "gather", r.getAct(y, H), row)

		dw := host.sparse((farRow + 1) * H)
		r.EmbedBackward(dw, y, ids, 1, H, farRow+1)
		if err := r.Sync(); err != nil {
			t.Fatal(err)
		}
		sameBits(t, "embed backward", words[float32](dw.Slice(farRow*H, H)), row)

		const rows, stride, cols = 5, 1 << 30, 40
		parts := host.sparse((rows-1)*stride + cols)
		want := make([]float64, cols)
		for i := range rows {
			line := words[float32](parts.Slice(i*stride, cols))
			for c := range line {
				line[c] = float32(i*cols + c)
				want[c] += float64(line[c])
			}
		}
		sum := r.fill(cols, 0)
		r.columnSum(sum, parts, rows, stride, cols)
		near(t, "column sum", r.get(sum), want, 0, 0)
	})
}
