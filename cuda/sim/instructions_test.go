package sim

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// The layouts below are written from the figures of the PTX manual ("Matrix fragments for mma.m16n8k16", "ldmatrix"), not
// from the engine.

// aPlace is where element i (0..7) of lane's A fragment lies in A [16, 16].
func aPlace(lane, i int) (row, col int) {
	row, col = lane>>2, (lane&3)*2+i&1
	if i == 2 || i == 3 || i == 6 || i == 7 {
		row += 8
	}
	if i >= 4 {
		col += 8
	}
	return row, col
}

// bPlace is where element i (0..3) of lane's B fragment lies in B [16, 8].
func bPlace(lane, i int) (row, col int) {
	row, col = (lane&3)*2+i&1, lane>>2
	if i >= 2 {
		row += 8
	}
	return row, col
}

// dPlace is where element i (0..3) of lane's accumulator lies in D [16, 8].
func dPlace(lane, i int) (row, col int) {
	row, col = lane>>2, (lane&3)*2+i&1
	if i >= 2 {
		row += 8
	}
	return row, col
}

func bf16(x float32) uint32 { return math.Float32bits(x) >> 16 } // of values that bf16 holds exactly

// mmaInput lays one product out in registers: [32, 10] words.
func mmaInput(a *[16][16]float32, b *[16][8]float32, d *[16][8]float32) []uint32 {
	words := make([]uint32, 32*10)
	for lane := range 32 {
		w := words[lane*10:]
		for i := range 8 {
			r, c := aPlace(lane, i)
			w[i/2] |= bf16(a[r][c]) << (16 * (i % 2))
		}
		for i := range 4 {
			r, c := bPlace(lane, i)
			w[4+i/2] |= bf16(b[r][c]) << (16 * (i % 2))
		}
		for i := range 4 {
			r, c := dPlace(lane, i)
			w[6+i] = math.Float32bits(d[r][c])
		}
	}
	return words
}

// Every place of A and of B in turn is the only one that is not zero, against a matrix of numbers that differ.
func TestMmaPlaceByPlace(t *testing.T) {
	var numbersA [16][16]float32
	var numbersB, d [16][8]float32
	for i := range 16 {
		for j := range 16 {
			numbersA[i][j] = float32(1 + i*16 + j)
		}
		for j := range 8 {
			numbersB[i][j] = float32(1 + i*8 + j)
			d[i][j] = float32(1000*i + j)
		}
	}
	var in []uint32
	var want [][16][8]float32
	for m := range 16 {
		for k := range 16 {
			var one [16][16]float32
			one[m][k] = 1
			w := d
			for n := range 8 {
				w[m][n] += numbersB[k][n]
			}
			in, want = append(in, mmaInput(&one, &numbersB, &d)...), append(want, w)
		}
	}
	for k := range 16 {
		for n := range 8 {
			var one [16][8]float32
			one[k][n] = 1
			w := d
			for m := range 16 {
				w[m][n] += numbersA[m][k]
			}
			in, want = append(in, mmaInput(&numbersA, &one, &d)...), append(want, w)
		}
	}
	out, _ := launch{kernel: "mma_raw", blocks: len(want), in: in, out: len(want) * 128, seed: 3}.must(t)
	for block, w := range want {
		for lane := range 32 {
			for i := range 4 {
				r, c := dPlace(lane, i)
				if got := math.Float32frombits(out[(block*32+lane)*4+i]); got != w[r][c] {
					t.Fatalf("product %d: (%d, %d) = %v, want %v", block, r, c, got, w[r][c])
				}
			}
		}
	}
}

func TestLdmatrixEveryElement(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, trans := range []int{0, 1} {
		for round := range 20 {
			in := make([]uint32, 32+128)
			rows := rng.Perm(32)
			if round > 10 { // lanes may name a row twice
				for i := range rows {
					rows[i] = rng.IntN(32)
				}
			}
			for i, r := range rows {
				in[i] = uint32(r)
			}
			for i := range 128 {
				in[32+i] = uint32(2*i) | uint32(2*i+1)<<16
			}
			out, _ := launch{kernel: "ldmatrix_raw", in: in, out: 128, dynamic: 32 * 16, seed: uint64(round), p: [4]int{trans, 4}}.must(t)
			for lane := range 32 {
				for m := range 4 {
					for half := range 2 {
						i, j := lane/4, 2*(lane%4)+half // row and column in what the lane gets
						if trans == 1 {
							i, j = j, i
						}
						want := uint32(8*rows[8*m+i] + j)
						if got := out[lane*4+m] >> (16 * half) & 0xffff; got != want {
							t.Fatalf("trans %d round %d: lane %d matrix %d half %d = %d, want %d", trans, round, lane, m, half, got, want)
						}
					}
				}
			}
		}
	}
}

// Rows of 128 bytes all start in the same bank; a row longer by 16 bytes spreads them.
func TestBankConflicts(t *testing.T) {
	for _, c := range []struct{ words, ways int }{{32, 8}, {36, 1}, {4, 1}, {8, 2}, {16, 4}} {
		in := append(count(32), make([]uint32, 128)...)
		_, got := launch{kernel: "ldmatrix_raw", in: in, out: 128, dynamic: 32 * c.words * 4, p: [4]int{0, c.words}}.must(t)
		if got.maxWays != c.ways || got.reads != 4 || got.ways != 4*(c.ways-1) {
			t.Errorf("rows of %d words: %+v, want %d ways", c.words, got, c.ways)
		}
	}
	in := make([]uint32, 32+128) // all lanes the same row: a broadcast
	if _, got := (launch{kernel: "ldmatrix_raw", in: in, out: 128, dynamic: 32 * 16, p: [4]int{0, 4}}).must(t); got.maxWays != 1 {
		t.Errorf("a broadcast is no conflict: %+v", got)
	}
}

func TestShuffles(t *testing.T) {
	const n = 64
	in := make([]uint32, n)
	for i := range in {
		in[i] = uint32(1000 + i)
	}
	for _, arg := range []int{0, 1, 5, 16, 31} {
		for seed := range uint64(4) {
			out, _ := launch{kernel: "shuffles", threads: n, in: in, out: 5 * n, seed: seed, p: [4]int{arg}}.must(t)
			for i := range n {
				base, lane := i&^31, i&31
				up, down := lane-arg, lane+arg
				if up < 0 {
					up = lane
				}
				if down > 31 {
					down = lane
				}
				half := 3
				if lane >= 16 {
					half = 19
				}
				for k, from := range []int{lane ^ arg, arg, up, down, half} {
					if got := out[k*n+i]; got != in[base+from] {
						t.Fatalf("arg %d seed %d: kind %d lane %d = %d, want %d", arg, seed, k, i, got, in[base+from])
					}
				}
			}
		}
	}
}

// roundBF16 is round to nearest even by exact comparison of the two neighbours, without the trick of the engine.
func roundBF16(f float32) uint32 {
	if f != f {
		return 0x7fff
	}
	bits := math.Float32bits(f)
	down := bits >> 16
	low := bits & 0xffff
	if low > 0x8000 || low == 0x8000 && down&1 == 1 {
		down++ // carries into the exponent and at last to infinity
	}
	return down
}

func TestBF16Rounding(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	var in []uint32
	for _, f := range []float32{0, 1, -1, float32(math.Inf(1)), float32(math.Inf(-1)), math.MaxFloat32, -math.MaxFloat32, math.SmallestNonzeroFloat32} {
		in = append(in, math.Float32bits(f))
	}
	in = append(in, 0x80000000, 0x7fc00000, 0xffc00001, 0x7f800001, 0x7fffffff, 0xffffffff) // -0, NaN
	for hi := range uint32(0x10000) {                                                       // every bf16, exact, tie and beside a tie
		for _, low := range []uint32{0, 0x7fff, 0x8000, 0x8001, uint32(rng.IntN(0x10000))} {
			in = append(in, hi<<16|low)
		}
	}
	for len(in)%1024 != 0 {
		in = append(in, 0)
	}
	out, _ := launch{kernel: "scalars", blocks: len(in) / 1024, threads: 1024, in: in, out: len(in)}.must(t)
	for i, w := range in {
		if want := roundBF16(math.Float32frombits(w)); out[i] != want {
			t.Fatalf("to_bf16(%08x) = %04x, want %04x", w, out[i], want)
		}
	}
}

func TestExp2Fast(t *testing.T) {
	x := []float32{0, 1, -1, 0.5, -126, -126.5, -150, 127.5, 128, float32(math.Inf(-1)), float32(math.Inf(1)), 1e-40}
	out, _ := launch{kernel: "scalars", threads: len(x), in: floats(x), out: len(x), p: [4]int{1}}.must(t)
	for i, v := range x {
		want := float32(math.Exp2(float64(v)))
		if want < 1.17549435e-38 {
			want = 0
		}
		got := math.Float32frombits(out[i])
		if got != want && !(math.Abs(float64(got/want-1)) < 3e-7) {
			t.Errorf("exp2_fast(%v) = %v, want %v", v, got, want)
		}
	}
	if out, _ := (launch{kernel: "scalars", threads: 1, in: []uint32{0x7fc00000}, out: 1, p: [4]int{1}}).must(t); out[0]&0x7fffffff <= 0x7f800000 {
		t.Errorf("exp2_fast(NaN) = %08x", out[0])
	}
}

// What a wait covers is there under every seed; with seed 0 what it does not cover is still under way.
func TestCopyGroups(t *testing.T) {
	const threads = 64
	in := count(threads * 4)
	for groups := 1; groups <= 4; groups++ {
		for left := 0; left <= min(2, groups); left++ {
			l := launch{kernel: "copies", threads: threads, dynamic: groups * threads * 16, in: in, repeat: 20, out: max(groups-left, 1) * threads * 4, p: [4]int{groups, left}}
			out, _ := l.must(t)
			for i := range (groups - left) * threads * 4 {
				want := in[i%len(in)]
				if i/(threads*4)%2 == 1 {
					want = 0
				}
				if out[i] != want {
					t.Fatalf("%d groups, %d may be left: word %d = %d, want %d", groups, left, i, out[i], want)
				}
			}
			if left == 0 {
				continue
			}
			l.repeat, l.p[2] = 1, 1
			if out, _ := l.must(t); out[0] != 0xffffffff {
				t.Errorf("%d groups, %d may be left: the last is there already", groups, left)
			}
		}
	}
}

func TestTemplatesHaveTheirOwnSharedMemory(t *testing.T) {
	out, c := launch{kernel: "instantiations", threads: 64, out: 128, repeat: 5}.must(t)
	for i := range 64 {
		if out[i] != 31+32 || out[64+i] != 63+64 {
			t.Fatalf("thread %d: %d, %d", i, out[i], out[64+i])
		}
	}
	if want := 32*4 + 4 + 64*4 + 4; c.static != want {
		t.Errorf("static memory %d, want %d", c.static, want)
	}
}

// Blocks run on several threads of the process at once, each with its own shared memory.
func TestManyBlocks(t *testing.T) {
	const blocks, threads = 500, 256
	in := count(blocks * threads)
	out, c := launch{kernel: "sums", blocks: blocks, threads: threads, in: in, out: blocks, seed: 9}.must(t)
	for b := range blocks {
		want := uint32(float32(threads*b*threads+threads*(threads-1)/2) + threads - 1)
		if math.Abs(float64(out[b])-float64(want)) > 8 { // fp32 sums
			t.Fatalf("block %d: %d, want %d", b, out[b], want)
		}
	}
	if c.blocks != blocks {
		t.Errorf("%d blocks counted", c.blocks)
	}
}

func TestTileProducts(t *testing.T) {
	const m, n, k = 32, 32, 48
	rng := rand.New(rand.NewPCG(7, 8))
	for _, name := range []string{"nn", "nt", "tn", "tt"} {
		for _, dtype := range []string{"f32", "bf16"} {
			t.Run(name+"_"+dtype, func(t *testing.T) {
				a, b := make([]float32, m*k), make([]float32, n*k)
				for _, x := range [][]float32{a, b} {
					for i := range x {
						x[i] = float32(rng.IntN(17) - 8)
					}
				}
				out, c := launch{kernel: "product_" + name + "_" + dtype, threads: 128, dynamic: productBytes(name, dtype),
					in: floats(slices.Concat(a, b)), out: 4 * m * n, repeat: 4, seed: rng.Uint64() >> 8}.must(t)
				for i, w := range out {
					warp, row, col := i/(m*n), i/n%m, i%n
					want := float32(warp)
					for x := range k {
						av, bv := a[row*k+x], b[col*k+x]
						if name[0] == 't' {
							av = a[x*m+row]
						}
						if name[1] == 't' {
							bv = b[x*n+col]
						}
						want += av * bv
					}
					if got := math.Float32frombits(w); got != want {
						t.Fatalf("warp %d (%d, %d) = %v, want %v", warp, row, col, got, want)
					}
				}
				if dtype == "bf16" && c.maxWays != 1 {
					t.Errorf("bank conflicts: %+v", c)
				}
			})
		}
	}
}

func productBytes(name, dtype string) int {
	const m, n, k = 32, 32, 48
	size, pad := 4, 4
	if dtype == "bf16" {
		size, pad = 2, 8
	}
	bytes := 0
	for i, rows := range []int{m, n} {
		if name[i] == 't' {
			bytes += k * (rows + pad) * size
		} else {
			bytes += rows * (k + pad) * size
		}
	}
	return bytes
}

func TestLoadTile(t *testing.T) {
	for _, dtype := range []string{"f32", "bf16"} {
		for _, rows := range []struct{ all, valid int }{{1, 1}, {7, 5}, {16, 16}, {33, 0}} {
			in := make([]uint32, 40*24)
			for i := range in {
				in[i] = math.Float32bits(float32(i % 128))
				if dtype == "bf16" {
					in[i] = bf16(float32(2*i%128)) | bf16(float32((2*i+1)%128))<<16
				}
			}
			out, _ := launch{kernel: "tiles_" + dtype, threads: 128, dynamic: 33 * 24 * 4, in: in, out: rows.all * 16, repeat: 5, p: [4]int{rows.all, rows.valid}}.must(t)
			for i, w := range out {
				want := float32((i/16*24 + i%16) % 128)
				if i/16 >= rows.valid {
					want = 0
				}
				if got := math.Float32frombits(w); got != want {
					t.Fatalf("%s %+v: row %d column %d = %v, want %v", dtype, rows, i/16, i%16, got, want)
				}
			}
		}
	}
}

// The same seed gives the same order, another seed another one.
func TestOrderFollowsSeed(t *testing.T) {
	results := map[string]bool{}
	for seed := range uint64(6) {
		l := launch{kernel: "arrival", threads: 64, out: 64, seed: seed}
		once, _ := l.must(t)
		again, _ := l.must(t)
		if !slices.Equal(once, again) {
			t.Errorf("seed %d: two orders", seed)
		}
		results[fmt.Sprint(once)] = true
	}
	if len(results) < 4 {
		t.Errorf("6 seeds gave %d orders", len(results))
	}
}
