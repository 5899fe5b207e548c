package cuda

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"unsafe"
)

// matrix is a stored matrix of one type on the host.
type matrix struct {
	rows, cols, ld int
	t              DType
	f              []float32 // the values, as the type holds them
}

func toBF16(f float32) uint16 {
	b := math.Float32bits(f)
	return uint16((b + 0x7fff + b>>16&1) >> 16)
}

func fromBF16(b uint16) float32 { return math.Float32frombits(uint32(b) << 16) }

func randomMatrix(r *rand.Rand, rows, cols, gap int, t DType) matrix {
	m := matrix{rows, cols, cols + gap, t, make([]float32, rows*(cols+gap))}
	for i := range m.f {
		m.f[i] = float32(r.NormFloat64())
		if t == BF16 {
			m.f[i] = fromBF16(toBF16(m.f[i]))
		}
	}
	return m
}

func (m matrix) at(i, j int) float64 { return float64(m.f[i*m.ld+j]) }

// upload puts the matrix at `offset` numbers behind the start of a buffer.
func (m matrix) upload(t *testing.T, d *Device, offset int) Ptr {
	t.Helper()
	p := alloc(t, d, (len(m.f)+offset)*m.t.Size()) + Ptr(offset*m.t.Size())
	if m.t == F32 {
		d.Stream().CopyIn(p, unsafe.Pointer(&m.f[0]), 4*len(m.f))
		return p
	}
	half := make([]uint16, len(m.f))
	for i, f := range m.f {
		half[i] = toBF16(f)
	}
	d.Stream().CopyIn(p, unsafe.Pointer(&half[0]), 2*len(half))
	return p
}

func fetch(d *Device, p Ptr, n int, t DType) []float32 {
	if t == F32 {
		return download[float32](d, p, n)
	}
	out := make([]float32, n)
	for i, b := range download[uint16](d, p, n) {
		out[i] = fromBF16(b)
	}
	return out
}

// product is one case: the shape, how it is stored and what is added.
type product struct {
	m, n, k     int
	ta, tb      bool
	in, out     DType
	alpha, beta float32
	gap, offset int // numbers between rows, numbers before the matrix
	a, b, c     matrix
	pa, pb, pc  Ptr
}

func (p *product) make(t *testing.T, d *Device, r *rand.Rand) {
	ar, ac, br, bc := p.m, p.k, p.k, p.n
	if p.ta {
		ar, ac = ac, ar
	}
	if p.tb {
		br, bc = bc, br
	}
	p.a, p.b, p.c = randomMatrix(r, ar, ac, p.gap, p.in), randomMatrix(r, br, bc, p.gap, p.in), randomMatrix(r, p.m, p.n, p.gap, p.out)
	p.pa, p.pb, p.pc = p.a.upload(t, d, p.offset), p.b.upload(t, d, p.offset), p.c.upload(t, d, p.offset)
}

func (p *product) matmul() Matmul {
	return Matmul{M: p.m, N: p.n, K: p.k, A: p.pa, B: p.pb, C: p.pc, LDA: p.a.ld, LDB: p.b.ld, LDC: p.c.ld,
		TransA: p.ta, TransB: p.tb, In: p.in, Out: p.out, Alpha: p.alpha, Beta: p.beta}
}

// want is C[i,j] in float64, with the sum of absolute terms that bounds its rounding.
func (p *product) want(i, j int) (sum, size float64) {
	for k := range p.k {
		ai, ak, bk, bj := i, k, k, j
		if p.ta {
			ai, ak = k, i
		}
		if p.tb {
			bk, bj = j, k
		}
		a, b := p.a.at(ai, ak), p.b.at(bk, bj)
		sum += a * b
		size += math.Abs(a * b)
	}
	sum, size = float64(p.alpha)*sum, math.Abs(float64(p.alpha))*size
	if p.beta != 0 {
		sum += float64(p.beta) * p.c.at(i, j)
		size += math.Abs(float64(p.beta) * p.c.at(i, j))
	}
	return sum, size
}

func (p *product) compare(t *testing.T, got []float32) {
	t.Helper()
	for i := range p.m {
		for j := range p.c.ld {
			g := float64(got[i*p.c.ld+j])
			if j >= p.n {
				if g != p.c.at(i, j) {
					t.Fatalf("C[%d,%d] lies between rows and was written", i, j)
				}
				continue
			}
			want, size := p.want(i, j)
			tolerance := 1e-6*size + 1e-9
			if p.out == BF16 {
				tolerance += math.Abs(want) / 256
			}
			if !(math.Abs(g-want) <= tolerance) {
				t.Fatalf("C[%d,%d] = %v, want %v", i, j, g, want)
			}
		}
	}
}

func TestMatmul(t *testing.T) {
	d := device(t)
	r := rand.New(rand.NewPCG(1, 2))
	types := [][2]DType{{F32, F32}, {BF16, BF16}, {BF16, F32}}
	shapes := [][3]int{{1, 1, 1}, {3, 8, 16}, {5, 7, 3}, {64, 40, 24}, {33, 65, 130}}
	for _, ty := range types {
		for trans := range 4 {
			for i, s := range shapes {
				for _, scale := range [][2]float32{{1, 0}, {0.5, 1}, {-2, 0.25}} {
					p := product{m: s[0], n: s[1], k: s[2], ta: trans&1 != 0, tb: trans&2 != 0, in: ty[0], out: ty[1], alpha: scale[0], beta: scale[1], gap: i % 3, offset: i % 2}
					p.make(t, d, r)
					if p.beta == 0 { // what C held must not matter
						d.Stream().CopyIn(p.pc, unsafe.Pointer(&[]uint32{0x7fc07fc0}[0]), p.out.Size())
					}
					m := p.matmul()
					d.Stream().Matmul(m)
					got := fetch(d, p.pc, len(p.c.f), p.out)
					if err := d.Stream().Sync(); err != nil {
						t.Fatalf("%s %v: %v", m.kind(), s, err)
					}
					p.compare(t, got)
				}
			}
		}
	}
}

// The bits of a row do not depend on how many rows there are nor on where they begin, whatever algorithm the library would
// like best for each count. The simulator's library, like the real one, likes others for few rows, and sums K in others.
func TestMatmulRowsDoNotDependOnTheirNumber(t *testing.T) {
	d := device(t)
	s := d.Stream()
	r := rand.New(rand.NewPCG(5, 6))
	for _, ty := range [][2]DType{{F32, F32}, {BF16, BF16}, {BF16, F32}} {
		for _, tb := range []bool{false, true} {
			p := product{m: 300, n: 40, k: 2048, tb: tb, in: ty[0], out: ty[1], alpha: 1}
			p.make(t, d, r)
			m := p.matmul()
			s.Matmul(m)
			all := fetch(d, p.pc, p.m*p.n, p.out)
			for _, part := range [][2]int{{0, 1}, {299, 300}, {17, 50}, {1, 300}, {250, 256}} {
				from, rows := part[0], part[1]-part[0]
				q := m
				q.M, q.A, q.C = rows, m.A+Ptr(from*m.LDA*m.In.Size()), m.C+Ptr(from*m.LDC*m.Out.Size())
				s.Zero(m.C, p.m*p.n*p.out.Size())
				s.Matmul(q)
				got := fetch(d, p.pc, p.m*p.n, p.out)
				for i := from * p.n; i < part[1]*p.n; i++ {
					if math.Float32bits(got[i]) != math.Float32bits(all[i]) {
						t.Fatalf("%s: rows %v alone: C[%d,%d] = %v, with the others %v", m.kind(), part, i/p.n, i%p.n, got[i], all[i])
					}
				}
			}
		}
	}
	mustSync(t, s)
	if n := len(d.blas.pinned); n != 6 {
		t.Errorf("%d algorithms pinned for 6 shapes", n)
	}
}

// dW = dyᵀ x has the tokens in K: one algorithm for every count, and none that splits them.
func TestMatmulGradientPinsByTheWeight(t *testing.T) {
	d := device(t)
	r := rand.New(rand.NewPCG(8, 9))
	var algorithms []string
	for _, tokens := range []int{1, 7, 300, 5000} {
		p := product{m: 24, n: 16, k: tokens, ta: true, in: BF16, out: F32, alpha: 1, beta: 1}
		p.make(t, d, r)
		d.Stream().Matmul(p.matmul())
		p.compare(t, fetch(d, p.pc, len(p.c.f), F32))
	}
	mustSync(t, d.Stream())
	for _, p := range d.blas.plans {
		algorithms = append(algorithms, fmt.Sprint(p.algo))
	}
	if len(algorithms) != 4 || len(d.blas.pinned) != 1 {
		t.Fatalf("%d plans, %d pinned algorithms; want 4 and 1", len(algorithms), len(d.blas.pinned))
	}
	for _, a := range algorithms {
		if a != algorithms[0] {
			t.Errorf("algorithms %v", algorithms)
		}
	}
}

func TestMatmulOfNothing(t *testing.T) {
	d := device(t)
	s := d.Stream()
	c := upload(t, d, []float32{1, 2, 3, 4})
	m := Matmul{M: 2, N: 2, K: 0, A: c, B: c, C: c, LDA: 2, LDB: 2, LDC: 2, Alpha: 1, Beta: 1}
	s.Matmul(m)
	if got := fmt.Sprint(download[float32](d, c, 4)); got != "[1 2 3 4]" {
		t.Errorf("beta 1: %s", got)
	}
	m.M, m.K = 0, 2
	s.Matmul(m)
	m.M, m.K, m.Beta = 2, 0, 0
	s.Matmul(m)
	if got := fmt.Sprint(download[float32](d, c, 4)); got != "[0 0 0 0]" {
		t.Errorf("beta 0: %s", got)
	}
	mustSync(t, s)
	m.Beta = 2
	s.Matmul(m)
	if err := s.Sync(); err == nil || !strings.Contains(err.Error(), "(M 2, N 2, K 0)") {
		t.Errorf("beta 2: %v", err)
	}
}

func TestMatmulMisuse(t *testing.T) {
	d := device(t)
	p := alloc(t, d, 1<<12)
	good := Matmul{M: 4, N: 8, K: 16, A: p, B: p + 1024, C: p + 2048, LDA: 16, LDB: 8, LDC: 8, Alpha: 1}
	d.Stream().Matmul(good)
	mustSync(t, d.Stream())
	for name, spoil := range map[string]func(*Matmul){
		"short rows of A":  func(m *Matmul) { m.LDA = 15 },
		"short rows of Aᵀ": func(m *Matmul) { m.TransA, m.LDA = true, 3 },
		"short rows of B":  func(m *Matmul) { m.LDB = 7 },
		"short rows of Bᵀ": func(m *Matmul) { m.TransB, m.LDB = true, 15 },
		"short rows of C":  func(m *Matmul) { m.LDC = 7 },
		"negative":         func(m *Matmul) { m.M = -1 },
		"f32 to bf16":      func(m *Matmul) { m.Out = BF16 },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", name)
				}
			}()
			m := good
			spoil(&m)
			d.Stream().Matmul(m)
		}()
	}
	// outside of the buffer: the library's refusal, with the shape
	m := good
	m.M = 4000
	d.Stream().Matmul(m)
	if err := d.Stream().Sync(); err == nil || !strings.Contains(err.Error(), "matmul A B, f32 to f32 (M 4000, N 8, K 16): device 0: CUBLAS_STATUS_") {
		t.Errorf("got %v", err)
	}
}

func TestAlign(t *testing.T) {
	for _, c := range []struct {
		p    Ptr
		row  int
		want Ptr
	}{{4096, 64, 16}, {4096 + 8, 64, 8}, {4096 + 2, 64, 2}, {4096, 6, 2}, {4096, 12, 4}, {4096 + 12, 12, 4}} {
		if got := align(c.p, c.row); got != c.want {
			t.Errorf("align(%d, %d) = %d, want %d", c.p, c.row, got, c.want)
		}
	}
}

// The descriptors kept are bounded; what is dropped is made again with the same algorithm.
func TestPlansAreBounded(t *testing.T) {
	d := device(t)
	a := alloc(t, d, 4*(maxPlans+10))
	b := alloc(t, d, 64)
	for m := 1; m <= maxPlans+5; m++ {
		if _, err := planFor(d, Matmul{M: m, N: 1, K: 1, A: a, B: b, C: a, LDA: 1, LDB: 1, LDC: 1}); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(d.blas.plans); n != maxPlans {
		t.Errorf("%d plans, want %d", n, maxPlans)
	}
	mustSync(t, d.Stream())
}

func planFor(d *Device, m Matmul) (*plan, error) {
	b, err := d.openBLAS()
	if err != nil {
		return nil, err
	}
	return b.plan(m.shape())
}
