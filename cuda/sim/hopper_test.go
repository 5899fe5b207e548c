package sim

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// The layouts are written from the pictures of the PTX manual ("Shared memory matrix layout", "Tensor swizzling modes"):
// atoms of 8 rows whose 16-byte pieces change places from row to row.

// swizzleMode is one way to lay an operand out: the number in a descriptor, the bytes of a row of an atom.
type swizzleMode struct {
	descriptor, span int
}

var swizzleModes = []swizzleMode{{0, 16}, {1, 128}, {2, 64}, {3, 32}}

// piece is where the 16-byte piece i of row r of an atom lies in its row.
func (m swizzleMode) piece(i, r int) int {
	switch m.span {
	case 128:
		return i ^ r%8
	case 64:
		return i ^ r/2%4
	case 32:
		return i ^ r/4%2
	}
	return i
}

// operand is a matrix [n,16] (n along M or N) in a picture of shared memory.
type operand struct {
	mode           swizzleMode
	along          bool // rows lie along M or N, not along K
	lead, stride   int
	offset, column int // where the picture has it, which 16 of a swizzled row's K it is
}

// at is the byte of value (i, k) in the picture.
func (o operand) at(i, k int) int {
	m := o.mode
	if !o.along {
		k += o.column * 16
		if m.span == 16 {
			return o.offset + i/8*o.stride + k/8*o.lead + i%8*16 + k%8*2
		}
		return o.offset + i/8*o.stride + i%8*m.span + m.piece(k/8, i%8)*16 + k%8*2
	}
	if m.span == 16 {
		return o.offset + i/8*o.stride + k/8*o.lead + k%8*16 + i%8*2
	}
	values := m.span / 2
	return o.offset + i/values*o.lead + k/8*o.stride + k%8*m.span + m.piece(i%values/8, k%8)*16 + i%8*2
}

// newOperand chooses strides for n values along M or N and places the operand at offset. It returns where it ends.
func newOperand(m swizzleMode, along bool, n, offset, column int) (operand, int) {
	o := operand{mode: m, along: along, offset: offset, column: column}
	atom := 8 * m.span
	switch {
	case m.span == 16 && !along:
		o.lead, o.stride = 128, 256+16*8 // blocks of 8 rows with room between
	case m.span == 16:
		o.stride, o.lead = 128, n/8*128+256
	case !along:
		o.lead, o.stride = 16, 2*atom
	default:
		o.lead, o.stride = 2*atom, 2*atom*(n*2+m.span-1)/m.span+1024
		o.stride = (o.stride + 1023) &^ 1023
	}
	end := 0
	for i := range n {
		for k := range 16 {
			end = max(end, o.at(i, k)+2)
		}
	}
	return o, (end + 1023) &^ 1023
}

func (o operand) start() int {
	if o.mode.span > 16 && !o.along {
		return o.offset + o.column*32
	}
	return o.offset
}

func TestWgmmaLayouts(t *testing.T) {
	rng := rand.New(rand.NewPCG(11, 12))
	for _, m := range swizzleModes {
		for _, n := range []int{32, 64, 128, 256} {
			for variant := range 4 {
				ta, tb := variant&1 == 1, variant&2 == 2
				column := rng.IntN(m.span / 16)
				column /= 2
				a, end := newOperand(m, ta, 64, 0, column)
				b, end := newOperand(swizzleModes[rng.IntN(4)], tb, n, end, 0)
				checkWgmma(t, rng, a, b, n, end, false)
			}
		}
	}
	for _, m := range swizzleModes {
		for _, tb := range []bool{false, true} {
			b, end := newOperand(m, tb, 64, 2048, 0)
			checkWgmma(t, rng, operand{}, b, 64, end, true)
		}
	}
}

func checkWgmma(t *testing.T, rng *rand.Rand, a, b operand, n, bytes int, registers bool) {
	t.Helper()
	name := fmt.Sprintf("A %+v B %+v N %d registers %v", a, b, n, registers)
	picture := make([]uint32, bytes/4)
	for i := range picture {
		picture[i] = 0x7fc07fc0 // NaN where no operand is
	}
	put := func(at int, v float32) {
		shift := at % 4 * 8
		picture[at/4] = picture[at/4]&^(0xffff<<shift) | bf16(v)<<shift
	}
	A, B := make([]float32, 64*16), make([]float32, n*16)
	for i := range A {
		A[i] = float32(rng.IntN(15) - 7)
		if registers {
			put(i*2, A[i])
		} else {
			put(a.at(i/16, i%16), A[i])
		}
	}
	for i := range B {
		B[i] = float32(rng.IntN(15) - 7)
		put(b.at(i/16, i%16), B[i])
	}
	head := []uint32{uint32(a.mode.descriptor), uint32(a.lead), uint32(a.stride), uint32(a.start()),
		uint32(b.mode.descriptor), uint32(b.lead), uint32(b.stride), uint32(b.start())}
	p := [4]int{n, 0, 0, 0}
	for i, set := range []bool{a.along, b.along, registers} {
		if set {
			p[i+1] = 1
		}
	}
	out, _ := launch{kernel: "wgmma_raw", threads: 128, dynamic: bytes + 1024, in: append(head, picture...), out: 64*n + len(picture),
		p: p, repeat: 2, seed: 5}.must(t)
	for i := range 64 * n {
		thread, r := i/(n/2), i%(n/2)
		row := thread/32*16 + thread%32/4 + r/2%2*8
		col := r/4*8 + thread%4*2 + r%2
		want := float32(r)
		for k := range 16 {
			want += A[row*16+k] * B[col*16+k]
		}
		if got := math.Float32frombits(out[i]); got != want {
			t.Fatalf("%s: (%d, %d) = %v, want %v", name, row, col, got, want)
		}
	}
}

func TestWgmmaGroups(t *testing.T) {
	l := launch{kernel: "wgmma_groups", threads: 128, dynamic: 4096, out: 256}
	for _, o := range []Options{{}, {Checked: true}} {
		for seed := range uint64(6) {
			l.seed, l.options, l.p[1] = seed, o, int(seed%2)
			out, _ := l.must(t)
			for i, want := range map[int]float32{0: 65, 127: 65, 128: 34, 255: 34} {
				if got := math.Float32frombits(out[i]); got != want {
					t.Fatalf("seed %d: word %d = %v, want %v", seed, i, got, want)
				}
			}
		}
	}
	l.seed, l.options, l.p[1] = 0, Options{}, 1
	l.p[0] = 3
	if out, _ := l.must(t); out[0] != 0xffbfffff {
		t.Errorf("a result that is read before its wait is %08x", out[0])
	}
	for p, want := range map[int]string{1: "wgmma_fence", 2: "wrote a register of the result", 4: "a wgmma is under way",
		5: "without async_proxy_fence", 6: "race", 7: "wrote a register of A"} {
		l.p[0], l.options.Checked = p, p == 5 || p == 6
		if _, _, err := l.run(t); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("fault %d: %v", p, err)
		}
	}
	l.p[0], l.options.Checked, l.dynamic = 0, false, 4000
	if _, _, err := l.run(t); err == nil {
		t.Error("no error where B is not all in shared memory")
	}
	l.threads = 96
	if _, _, err := l.run(t); err == nil {
		t.Error("no error in a part of a warpgroup")
	}
}

func TestRingOfBulkCopies(t *testing.T) {
	in := count(20 * 64)
	sum := uint32(0)
	for _, v := range in {
		sum += v
	}
	for _, checked := range []bool{false, true} {
		for _, stages := range []int{1, 2, 5, 8} {
			l := launch{kernel: "ring", threads: 96, dynamic: stages * 256, in: in, out: 2, repeat: 10, p: [4]int{0, stages, 20}, options: Options{checked}}
			if out, _ := l.must(t); out[0] != sum || out[1] != sum {
				t.Fatalf("%d stages: %d, want %d", stages, out, sum)
			}
		}
	}
	for fault := 1; fault <= 2; fault++ {
		l := launch{kernel: "ring", threads: 96, dynamic: 512, in: in, out: 2, p: [4]int{fault, 2, 20}}
		wrong := 0
		for seed := range uint64(8) {
			l.seed = seed
			if out, _, err := l.run(t); err != nil || out[0] != sum || out[1] != sum {
				wrong++
			}
		}
		if wrong < 6 {
			t.Errorf("fault %d shows in %d of 8 orders", fault, wrong)
		}
		l.options.Checked = true
		if _, _, err := l.run(t); err == nil {
			t.Errorf("fault %d: the checked build finds nothing", fault)
		}
	}
}

func TestTensorBoxes(t *testing.T) {
	const width, rows = 100, 20 // of bf16
	data := make([]uint32, rows*104/2)
	value := func(r, c int) uint32 { return uint32(1 + r*width + c) }
	for r := range rows {
		for c := range width {
			data[(r*104+c)/2] |= value(r, c) << (16 * (c % 2))
		}
	}
	in := append(make([]uint32, 32), data...)
	for _, m := range swizzleModes {
		for _, at := range [][2]int{{0, 0}, {16, 8}, {88, 15}, {-8, -3}, {200, 0}} {
			boxWidth, boxRows, swizzle := m.span/2, 10, map[int]int{16: 0, 32: 1, 64: 2, 128: 3}[m.span]
			bytes := m.span * boxRows
			l := launch{kernel: "tensor_box", dynamic: bytes + 1024, in: in, out: bytes / 4, p: [4]int{at[0], at[1], bytes}, repeat: 3,
				mapping: fmt.Sprintf("9,%d,%d,208,%d,%d,%d", width, rows, boxWidth, boxRows, swizzle)}
			for _, l.options.Checked = range []bool{false, true} {
				out, _ := l.must(t)
				for i := range bytes / 2 {
					r, c := i/boxWidth, i%boxWidth
					got := out[(r*m.span+m.piece(c/8, r%8)*16+c%8*2)/4] >> (16 * (c % 2)) & 0xffff
					want := uint32(0)
					if y, x := at[1]+r, at[0]+c; x >= 0 && x < width && y >= 0 && y < rows {
						want = value(y, x)
					}
					if got != want {
						t.Fatalf("span %d at %v: (%d, %d) = %d, want %d", m.span, at, r, c, got, want)
					}
				}
			}
		}
	}
	l := launch{kernel: "tensor_box", dynamic: 4096, in: in, out: 4, p: [4]int{0, 0, 16}}
	for _, l.mapping = range []string{"9,100,20,200,8,1,0", "9,100,20,208,4,1,0", "9,100,20,208,128,1,3", "9,100,20,208,8,300,0"} {
		if _, _, err := l.run(t); err == nil || !strings.Contains(err.Error(), "cuTensorMapEncodeTiled: 1") {
			t.Errorf("map %s: %v", l.mapping, err)
		}
	}
}

func TestNumberedBarriers(t *testing.T) {
	want := make([]uint32, 64)
	for i := range want {
		want[i] = uint32(63-i) * 3
	}
	for _, checked := range []bool{false, true} {
		l := launch{kernel: "numbered", threads: 128, out: 64, repeat: 8, options: Options{checked}}
		if out, _ := l.must(t); !slices.Equal(out, want) {
			t.Errorf("%v", out)
		}
	}
	for p, text := range map[int]string{2: "barrier 1 is for", 3: "deadlock"} {
		if _, _, err := (launch{kernel: "numbered", threads: 128, out: 64, seed: 3, p: [4]int{p}}).run(t); err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("fault %d: %v", p, err)
		}
	}
	if _, _, err := (launch{kernel: "numbered", threads: 128, out: 64, p: [4]int{1}, options: Options{true}}).run(t); err == nil || !strings.Contains(err.Error(), "shared memory m") {
		t.Errorf("readers that do not wait: %v", err)
	}
}

func TestMbarrierFaults(t *testing.T) {
	for p, text := range map[int]string{
		1: "not initialised", 2: "deadlock", 3: "1 arrivals and 0 bytes missing", 4: "multiples of 16", 5: "ends while a bulk copy is under way",
		6: "do not fit", 7: "more arrivals than the 1", 8: "a second time", 9: "no mbar_fence",
	} {
		for seed := range uint64(3) {
			if p == 5 && seed > 0 {
				continue // by chance it is over in time
			}
			l := launch{kernel: "mbarrier_faults", threads: 64, dynamic: 4096, in: count(64), out: 1, seed: seed, p: [4]int{p}}
			if _, _, err := l.run(t); err == nil || !strings.Contains(err.Error(), text) {
				t.Errorf("fault %d, seed %d: %v", p, seed, err)
			}
		}
	}
}
