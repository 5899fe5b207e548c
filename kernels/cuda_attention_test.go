//go:build cgo

package kernels

import (
	"fmt"
	"slices"
	"strconv"
	"testing"

	"harness-s/cuda"
)

// Limits of shared memory a block, one for each set of tiles: sm_86, sm_80 and sm_90.
const (
	limit86 = 99 << 10
	limit80 = 163 << 10
	limit90 = 227 << 10
)

var (
	path86 = attentionPath{limit: limit86}
	path80 = attentionPath{limit: limit80}
	path90 = attentionPath{limit: limit90} // sm_90 with the kernels of all devices
	sm90   = attentionPath{limit: limit90, sm90: true}
)

func (p attentionPath) String() string {
	if p.sm90 {
		return "sm90"
	}
	return fmt.Sprintf("%dK", p.limit>>10)
}

// attnDeviceCases have every head dim of the tables, exact and padded, and groups of 1 to 4 query heads.
var attnDeviceCases = []struct {
	s      AttnShape
	path   attentionPath
	dtypes []DType
	rows   []int
}{
	{AttnShape{Hq: 1, Hk: 1, D: 16}, path86, []DType{F32, BF16}, edgeRows},
	{AttnShape{Hq: 4, Hk: 2, D: 32}, path86, []DType{F32, BF16}, edgeRows},
	{AttnShape{Hq: 3, Hk: 1, D: 48}, path86, []DType{F32, BF16}, edgeRows},
	{AttnShape{Hq: 4, Hk: 1, D: 64}, path86, []DType{F32, BF16}, []int{66, 1, 150}},
	{AttnShape{Hq: 2, Hk: 2, D: 80}, path86, []DType{F32, BF16}, []int{17, 130}},
	{AttnShape{Hq: 2, Hk: 1, D: 128}, path86, []DType{F32, BF16}, []int{129, 3}},
	{AttnShape{Hq: 2, Hk: 1, D: 256}, path86, []DType{F32, BF16}, []int{5, 100}},
	{AttnShape{Hq: 1, Hk: 1, D: 208}, path86, []DType{F32, BF16}, []int{65}},
	{AttnShape{Hq: 2, Hk: 1, D: 256}, path80, []DType{BF16}, []int{70, 0, 150}},
	{AttnShape{Hq: 4, Hk: 1, D: 256}, path90, []DType{BF16}, []int{70, 0, 150}},
	{AttnShape{Hq: 1, Hk: 1, D: 144}, path90, []DType{BF16}, []int{200}},
	{AttnShape{Hq: 2, Hk: 1, D: 128}, sm90, []DType{BF16}, []int{129, 3, 300}},
	{AttnShape{Hq: 2, Hk: 1, D: 256}, sm90, []DType{BF16}, []int{1, 2, 3, 63, 0, 64, 65, 127, 128, 129, 1}},
	{AttnShape{Hq: 4, Hk: 1, D: 256}, sm90, []DType{BF16}, []int{70, 0, 350}},
}

// attnDeviceRun is forward and backward with the tiles of a limit: o, lse, dq, dk, dv.
func attnDeviceRun(r *deviceRig, s AttnShape, path attentionPath, seg Segments, in [][]float32) [][]float32 {
	if info := r.dev.Info(); path.limit > info.SharedOptin || path.sm90 && !wantSM90(info) {
		r.Skipf("%s has not what %s takes", info.Name, path)
	}
	T := seg.Tokens()
	nq, nk := T*s.Hq*s.D, T*s.Hk*s.D
	o, lse, dq, dk, dv := r.fillAct(nq), r.fill(T*s.Hq, nan32), r.fillAct(nq), r.fillAct(nk), r.fillAct(nk)
	q, k, v := r.act(in[0]), r.act(in[1]), r.act(in[2])
	r.attention(o, lse, q, k, v, s, seg, path)
	r.attentionBackward(dq, dk, dv, r.act(in[3]), o, lse, q, k, v, s, seg, path)
	out := [][]float32{r.getAct(o, nq), r.get(lse), r.getAct(dq, nq), r.getAct(dk, nk), r.getAct(dv, nk)}
	if err := r.Sync(); err != nil {
		r.Fatal(err)
	}
	return out
}

// attnDeviceInputs are q, k, v and do: scores of some units, so that softmax rows are flat to peaked.
func attnDeviceInputs(r *deviceRig, s AttnShape, T int) [][]float32 {
	return [][]float32{r.normal(T*s.Hq*s.D, 1.5), r.normal(T*s.Hk*s.D, 1.5), r.normal(T*s.Hk*s.D, 1), r.normal(T*s.Hq*s.D, 1)}
}

// TestDeviceAttentionReference: in fp32 the largest error of a head against its largest value; scores of up to 20 carry
// rounding of 2e-6. In bf16 the L2 norm of the error against the float64 result on the same bf16 inputs: P, dS and the
// results are rounded to 2^-9 each, so a plain chain of such products is off by 1.8e-3 in o and 2e-3 to 4e-3 in the gradients.
func TestDeviceAttentionReference(t *testing.T) {
	for _, c := range attnDeviceCases {
		for _, dtype := range c.dtypes {
			t.Run(fmt.Sprintf("hq%d_hk%d_d%d_%s_%s", c.s.Hq, c.s.Hk, c.s.D, c.path, dtype), func(t *testing.T) {
				r := newDeviceRig(t, dtype)
				seg := segments(c.rows...)
				in := attnDeviceInputs(r, c.s, seg.Tokens())
				got := attnDeviceRun(r, c.s, c.path, seg, in)
				want := refAttention(f64(in[0]), f64(in[1]), f64(in[2]), f64(in[3]), c.s, seg)
				nearHeads(t, "lse", got[1], want.lse, c.s.Hq, 1, 2e-6, 1)
				near := func(what string, got []float32, want []float64, heads int, bf16 float64) {
					if dtype == BF16 {
						nearHeadsL2(t, what, got, want, heads, c.s.D, bf16)
					} else {
						nearHeads(t, what, got, want, heads, c.s.D, 5e-6, 1e-3)
					}
				}
				near("o", got[0], want.o, c.s.Hq, 2.5e-3)
				near("dq", got[2], want.dq, c.s.Hq, 5e-3)
				near("dk", got[3], want.dk, c.s.Hk, 5e-3)
				near("dv", got[4], want.dv, c.s.Hk, 5e-3)
			})
		}
	}
}

// TestDeviceAttentionRowsAlone: packed and separate rows have the same bits, and NaN stays in its row, with every set of
// tiles.
func TestDeviceAttentionRowsAlone(t *testing.T) {
	for _, c := range []struct {
		dtype DType
		s     AttnShape
		path  attentionPath
		rows  []int
	}{
		{F32, AttnShape{Hq: 4, Hk: 2, D: 32}, path86, edgeRows},
		{BF16, AttnShape{Hq: 4, Hk: 2, D: 32}, path86, edgeRows},
		{BF16, AttnShape{Hq: 2, Hk: 1, D: 256}, path86, []int{33, 64, 1}},
		{BF16, AttnShape{Hq: 1, Hk: 1, D: 256}, path90, []int{65, 3, 130}},
		{BF16, AttnShape{Hq: 2, Hk: 1, D: 256}, sm90, []int{65, 3, 130}},
		{BF16, AttnShape{Hq: 1, Hk: 1, D: 128}, sm90, []int{1, 257}},
	} {
		t.Run(fmt.Sprintf("d%d_%s_%s", c.s.D, c.path, c.dtype), func(t *testing.T) {
			r := newDeviceRig(t, c.dtype)
			seg := segments(c.rows...)
			w := []int{c.s.Hq * c.s.D, c.s.Hk * c.s.D, c.s.Hk * c.s.D, c.s.Hq * c.s.D}
			checkRowsAlone(&rig{TB: t}, seg, attnDeviceInputs(r, c.s, seg.Tokens()), w, []int{w[0], c.s.Hq, w[0], w[1], w[1]},
				func(seg Segments, in [][]float32) [][]float32 { return attnDeviceRun(r, c.s, c.path, seg, in) })
		})
	}
}

// TestDeviceAttentionOrder: the order in which blocks, threads and copies run changes no bit.
func TestDeviceAttentionOrder(t *testing.T) {
	eachDType(t, func(t *testing.T, dtype DType) {
		for _, c := range []struct {
			s    AttnShape
			path attentionPath
		}{{AttnShape{Hq: 4, Hk: 2, D: 32}, path86}, {AttnShape{Hq: 1, Hk: 1, D: 256}, path90}, {AttnShape{Hq: 1, Hk: 1, D: 256}, sm90}} {
			if c.path.sm90 && dtype != BF16 {
				continue
			}
			var first outputs
			for _, seed := range []int{1, 0, 2} { // 0: in order, every copy as late as it may be
				t.Setenv("HARNESS_S_SIM_SEED", strconv.Itoa(seed))
				r := newDeviceRig(t, dtype)
				seg := segments(70, 3)
				got := outputs(attnDeviceRun(r, c.s, c.path, seg, attnDeviceInputs(r, c.s, seg.Tokens())))
				if first == nil {
					first = got
				}
				sameOutputs(t, fmt.Sprintf("d%d seed %d", c.s.D, seed), got, first)
			}
		}
	})
}

// TestDeviceAttentionNoLse: lse may be none, and o has the same bits; a batch without tokens is nothing to do.
func TestDeviceAttentionNoLse(t *testing.T) {
	eachDType(t, func(t *testing.T, dtype DType) {
		r, s, seg := newDeviceRig(t, dtype), AttnShape{Hq: 2, Hk: 1, D: 32}, segments(40, 7)
		in := attnDeviceInputs(r, s, seg.Tokens())
		o, q, k, v := r.fillAct(len(in[0])), r.act(in[0]), r.act(in[1]), r.act(in[2])
		r.Attention(o, Buffer{}, q, k, v, s, seg)
		sameBits(t, "o", r.getAct(o, len(in[0])), attnDeviceRun(r, s, r.attentionPath(), seg, in)[0])
		attnDeviceRun(r, s, path90, segments(0, 0), attnDeviceInputs(r, s, 0))
		wide := AttnShape{Hq: 2, Hk: 1, D: 256}
		attnDeviceRun(r, wide, sm90, segments(0, 0), attnDeviceInputs(r, wide, 0))
	})
}

// TestDeviceAttentionFarTokens: a row whose values lie 2^32 values or more behind the start of its buffers has the bits of the same
// row at the start. No such buffers are made: the kernels get addresses that much before the ones they reach.
func TestDeviceAttentionFarTokens(t *testing.T) {
	eachDType(t, func(t *testing.T, dtype DType) { checkFarTokens(t, dtype, 64, path86) })
	t.Run("sm90", func(t *testing.T) { checkFarTokens(t, BF16, 128, sm90) })
}

func checkFarTokens(t *testing.T, dtype DType, d int, path attentionPath) {
	r, s := newDeviceRig(t, dtype), AttnShape{Hq: 2, Hk: 1, D: d}
	const T, far = 70, 1 << 26
	in := attnDeviceInputs(r, s, T)
	want := attnDeviceRun(r, s, path, segments(T), in)
	o, lse, dq, dk, dv := r.act(want[0]), r.buf(want[1]), r.fillAct(len(in[0])), r.fillAct(len(in[1])), r.fillAct(len(in[1]))
	delta := r.fill(T*s.Hq, nan32)
	before := func(b Buffer, heads, bytes int) uintptr { return b.ptr - uintptr(far*heads*bytes) }
	queries := func(b Buffer) uintptr { return before(b, s.Hq, s.D*dtype.Bytes()) }
	keys := func(b Buffer) uintptr { return before(b, s.Hk, s.D*dtype.Bytes()) }
	q, k, v, do := r.act(in[0]), r.act(in[1]), r.act(in[2]), r.act(in[3])
	rows := attentionRows{r.ints([]int32{far, far + T}).ptr, r.ints([]int32{0, 2}).ptr, r.ints([]int32{0, 0}).ptr}

	fo, flse := r.fillAct(len(in[0])), r.fill(T*s.Hq, nan32)
	r.launchAttention(attentionArgs{o: queries(fo), lse: before(flse, s.Hq, 4), q: queries(q), k: keys(k), v: keys(v),
		rows: rows, hq: int32(s.Hq), hk: int32(s.Hk), d: int32(s.D), scale: attentionScale(s)}, far+T, 2, path)
	a := attentionBackwardArgs{dq: queries(dq), dk: keys(dk), dv: keys(dv), do: do.ptr, o: o.ptr, q: queries(q), k: keys(k), v: keys(v),
		lse: before(lse, s.Hq, 4), delta: delta.ptr, rows: rows, n: int64(T * s.Hq),
		hq: int32(s.Hq), hk: int32(s.Hk), d: int32(s.D), scale: attentionScale(s)}
	kAttentionDelta.launch(r.cudaBackend, grid(blocks(T*s.Hq, 8), 1, 1), 256, 0, a)
	a.do, a.delta = queries(do), before(delta, s.Hq, 4)
	r.launchAttentionGradients(a, far+T, 2, path)
	got := outputs{r.getAct(fo, len(in[0])), r.get(flse), r.getAct(dq, len(in[0])), r.getAct(dk, len(in[1])), r.getAct(dv, len(in[1]))}
	sameOutputs(t, "far row", got, want)
}

// TestDeviceAttentionChoice: the kernels of compute capability 9.0 run there, in bf16, for the head dims that they are made
// for, unless they are forbidden; elsewhere those of all devices do.
func TestDeviceAttentionChoice(t *testing.T) {
	plain := []string{"attention_256_large_bf16", "attention_delta_bf16", "attention_dq_256_huge_bf16", "attention_dkv_256_huge_bf16"}
	made := []string{"attention_sm90_256_bf16", "attention_delta_bf16", "attention_dq_sm90_256_bf16", "attention_dkv_sm90_256_bf16"}
	for _, c := range []struct {
		name         string
		major, minor int
		dtype        DType
		d            int
		env          string
		want         []string
	}{
		{"9.0", 9, 0, BF16, 256, "", made},
		{"9.0 off", 9, 0, BF16, 256, "off", plain},
		{"10.0", 10, 0, BF16, 256, "", plain},
		{"12.0", 12, 0, BF16, 64, "", []string{"attention_64_bf16", "attention_delta_bf16", "attention_dq_64_bf16", "attention_dkv_64_bf16"}},
		{"9.0 d240", 9, 0, BF16, 240, "", plain},
		{"9.0 fp32", 9, 0, F32, 256, "", []string{"attention_256_f32", "attention_delta_f32", "attention_dq_256_f32", "attention_dkv_256_f32"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Setenv("HARNESS_S_SM90", c.env)
			be, rec, err := OpenRecording(cuda.DeviceInfo{Name: c.name, Memory: 1 << 30, SMs: 132, Major: c.major, Minor: c.minor, SharedOptin: limit90, SharedPerSM: 228 << 10}, c.dtype, 1)
			if err != nil {
				t.Fatal(err)
			}
			defer rec.Close()
			defer be.Close()
			s, seg := AttnShape{Hq: 2, Hk: 1, D: c.d}, segments(100, 30)
			buf := func(heads, d int) Buffer {
				b, err := be.Alloc("test", seg.Tokens()*heads*d)
				if err != nil {
					t.Fatal(err)
				}
				return b
			}
			q, k, lse := buf(s.Hq, s.D), buf(s.Hk, s.D), buf(s.Hq, 1)
			be.Attention(q, lse, q, k, k, s, seg)
			be.AttentionBackward(q, k, k, q, q, lse, q, k, k, s, seg)
			if err := be.Sync(); err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, w := range rec.Take() {
				if w.Op == cuda.OpLaunch {
					got = append(got, w.Name)
				}
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}
