package cuda

/*
#cgo noescape hs_blas_matmul
#cgo nocallback hs_blas_matmul
#include "shim.h"
*/
import "C"

import (
	"errors"
	"fmt"
	"math/bits"
	"sync"
	"unsafe"
)

// DType is how numbers are stored.
type DType int

const (
	F32 DType = iota
	BF16
)

func (t DType) String() string { return [...]string{"f32", "bf16"}[t] }

// Size is the bytes of one number.
func (t DType) Size() int { return [...]int{4, 2}[t] }

func (t DType) cuda() C.int { return [...]C.int{C.HS_CUDA_R_32F, C.HS_CUDA_R_16BF}[t] }

// Matmul is a matrix product, everything row-major: C[M,N] = Alpha op(A)[M,K] op(B)[K,N] + Beta C. op(X) is X, or Xᵀ with
// Trans: A is then stored [K,M], B [N,K]. LDA, LDB, LDC are the numbers from one stored row to the next. In is the type
// of A and B, Out that of C: f32 to f32, bf16 to bf16 or bf16 to f32. Sums are fp32, never TF32.
type Matmul struct {
	M, N, K        int
	A, B, C        Ptr
	LDA, LDB, LDC  int
	TransA, TransB bool
	In, Out        DType
	Alpha, Beta    float32
}

// kind names the product in an error, its numbers apart: "A Bᵀ, bf16 to f32".
func (m *Matmul) kind() string { return kinds[m.In][m.Out][b2i(m.TransA)][b2i(m.TransB)] }

var kinds = func() (k [2][2][2][2]string) {
	for in := range k {
		for out := range k[in] {
			for i, a := range []string{"A", "Aᵀ"} {
				for j, b := range []string{"B", "Bᵀ"} {
					k[in][out][i][j] = fmt.Sprintf("%s %s, %v to %v", a, b, DType(in), DType(out))
				}
			}
		}
	}
	return
}()

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}

func (m *Matmul) check() {
	rowA, rowB := m.K, m.N
	if m.TransA {
		rowA = m.M
	}
	if m.TransB {
		rowB = m.K
	}
	if m.M < 0 || m.N < 0 || m.K < 0 || m.LDA < max(rowA, 1) || m.LDB < max(rowB, 1) || m.LDC < max(m.N, 1) || (m.In == F32 && m.Out == BF16) {
		panic(fmt.Sprintf("cuda: wrong matrix product %+v", *m))
	}
}

// shape is m as the caches know it: alignments stand for addresses.
func (m Matmul) shape() Matmul {
	m.A, m.B, m.C = align(m.A, m.LDA*m.In.Size()), align(m.B, m.LDB*m.In.Size()), align(m.C, m.LDC*m.Out.Size())
	m.Alpha, m.Beta = 0, 0
	return m
}

// align is what the bytes from one row to the next and the first row's address are both multiples of, at most 16 (the
// most that any load of the library's kernels asks for). It is the same for every row of one matrix.
func align(p Ptr, row int) Ptr {
	return Ptr(1) << min(bits.TrailingZeros(uint(p)), bits.TrailingZeros(uint(row)), 4)
}

// An algorithm of cuBLASLt fixes the tile and the order in which a tile sums over K; which algorithm is best, the
// library's heuristic decides from all of M, N and K. Here the bits of a row must not depend on how many rows are
// computed with it. So an algorithm is chosen once for a shape without its token count, which is
//
//	M in y = x Wᵀ and dx = dy W   (A is stored [tokens, K])
//	K in dW = dyᵀ x               (A is stored [tokens, M], B [tokens, N])
//	none in Aᵀ Bᵀ                 (no count can change without the length of a stored row)
//
// by asking the heuristic at pinnedTokens, and serves every count. Algorithms that cut K into parts summed apart are left
// out (their sums depend on the cut, and the cut on the workspace); the workspace is of one size. Row lengths and
// alignments are part of the shape: they decide which loads a kernel may use. The price is that products of a few rows
// run on tiles made for many.
//
// Among the heuristic's answers, best first, the first wins that the library accepts at every count of probes. A product
// whose count it then refuses all the same is an error: another algorithm would be another sum.
const pinnedTokens = 4096

var probes = [...]int{1, 2, 37, 512, 1 << 16}

// withTokens is the shape with another count of tokens, if it has one.
func (m Matmul) withTokens(n int) Matmul {
	switch {
	case !m.TransA:
		m.M = n
	case !m.TransB:
		m.K = n
	}
	return m
}

// product is the same as the library sees it, which is column-major: a row-major matrix is its transpose, so it computes
// Cᵀ[N,M] = op(B)ᵀ op(A)ᵀ with the operands' order turned round.
func (m *Matmul) product(workspace int) C.hs_product {
	return C.hs_product{
		m: C.int64_t(m.N), n: C.int64_t(m.M), k: C.int64_t(m.K),
		lda: C.int64_t(m.LDB), ldb: C.int64_t(m.LDA), ldd: C.int64_t(m.LDC),
		transa: C.int(b2i(m.TransB)), transb: C.int(b2i(m.TransA)),
		in: m.In.cuda(), out: m.Out.cuda(),
		aligna: C.uint32_t(m.B), alignb: C.uint32_t(m.A), alignd: C.uint32_t(m.C),
		workspace: C.uint64_t(workspace),
	}
}

// blas is cuBLASLt on one device. It is used by the device's one caller at a time.
type blas struct {
	d         *Device
	lib       *C.hs_blas
	handle    C.uintptr_t
	workspace int
	pinned    map[Matmul]C.hs_algo // by shape with pinnedTokens
	plans     map[Matmul]*plan     // by shape
}

type plan struct {
	c    *C.hs_plan
	algo C.hs_algo
}

// maxPlans bounds the descriptors kept: a few hundred bytes each, as many as there are token counts.
const maxPlans = 4096

// blasLibrary is loaded when a device first needs it.
type blasLibrary struct {
	once  sync.Once
	lib   *C.hs_blas
	found Library
	err   error
}

func (r *Runtime) loadBLAS() (*blasLibrary, error) {
	b := &r.blas
	b.once.Do(func() { b.lib, b.found, b.err = openBLAS(r.options.BLAS, r.version) })
	return b, b.err
}

// openBLAS takes the first cuBLASLt that is new enough and not newer than the driver (CUDA version, as in 12090).
func openBLAS(option string, driver int) (*C.hs_blas, Library, error) {
	var tried []string
	for _, c := range find(libBLAS, option) {
		lib, file, err := openLibrary(c.path, func(path *C.char, file, why **C.char) unsafe.Pointer {
			return unsafe.Pointer(C.hs_blas_open(path, file, why))
		})
		if err != nil {
			tried = append(tried, err.Error())
			continue
		}
		b := (*C.hs_blas)(lib)
		version := int(C.hs_blas_version(b)) // 120901 is 12.9.1
		major := version / 10000
		if major < 12 || major > driver/1000 {
			tried = append(tried, fmt.Sprintf("%s: version %d, the driver takes 12 to %d", file, major, driver/1000))
			continue
		}
		return b, Library{Name: libBLAS.name, Path: file, From: c.from, Version: fmt.Sprintf("%d.%d.%d", major, version/100%100, version%100)}, nil
	}
	return nil, Library{Name: libBLAS.name}, &notFound{libBLAS, tried}
}

func (d *Device) openBLAS() (*blas, error) {
	if d.blas != nil {
		return d.blas, nil
	}
	l, err := d.rt.loadBLAS()
	if err != nil {
		return nil, err
	}
	b := &blas{d: d, lib: l.lib, workspace: 4 << 20, pinned: map[Matmul]C.hs_algo{}, plans: map[Matmul]*plan{}}
	if d.info.Major >= 9 {
		b.workspace = 32 << 20 // what the library's Hopper kernels ask for
	}
	if err := b.status(C.hs_blas_create(b.lib, d.c, &b.handle)); err != nil {
		return nil, fmt.Errorf("%s: make a handle: %w", l.found.Path, err)
	}
	d.blas = b
	return b, nil
}

func (b *blas) close() {
	for _, p := range b.plans {
		C.hs_blas_forget(b.lib, p.c)
	}
	C.hs_blas_destroy(b.lib, b.d.c, b.handle)
}

func (b *blas) status(code C.int) error {
	if code == 0 {
		return nil
	}
	err := fmt.Errorf("%s (%d)", C.GoString(C.hs_blas_status(b.lib, code)), int(code))
	if said := b.d.rt.trouble(); said != "" {
		err = fmt.Errorf("%w: %s", err, said)
	}
	return err
}

// Matmul queues a product.
func (s *Stream) Matmul(m Matmul) {
	m.check()
	o := op{kind: opMatmul, name: m.kind(), v: [6]int{m.M, m.N, m.K}}
	if m.M == 0 || m.N == 0 || !s.begin(o) {
		return
	}
	if m.K == 0 { // an empty sum
		s.scaleEmpty(&m, o)
		return
	}
	if err := s.matmul(&m); err != nil {
		s.d.Fail(o.String(), err)
	}
}

// scaleEmpty is C = Beta C for the two betas that occur.
func (s *Stream) scaleEmpty(m *Matmul, o op) {
	switch {
	case m.Beta == 1:
	case m.Beta == 0 && m.LDC == m.N:
		s.Zero(m.C, m.M*m.N*m.Out.Size())
	default:
		s.d.Fail(o.String(), errors.New("an empty sum wants beta 1, or beta 0 and rows without gaps"))
	}
}

func (s *Stream) matmul(m *Matmul) error {
	b, err := s.d.openBLAS()
	if err != nil {
		return err
	}
	if s.workspace == 0 {
		if s.workspace, err = s.d.alloc("matmul workspace", b.workspace); err != nil {
			return err
		}
	}
	p, err := b.plan(m.shape())
	if err != nil {
		return err
	}
	return b.status(C.hs_blas_matmul(b.lib, s.d.c, b.handle, p.c, &p.algo, C.float(m.Alpha), C.uint64_t(m.B), C.uint64_t(m.A),
		C.float(m.Beta), C.uint64_t(m.C), C.uint64_t(s.workspace), C.size_t(b.workspace), s.h))
}

// plan finds or makes the descriptors of a shape, with its pinned algorithm.
func (b *blas) plan(shape Matmul) (*plan, error) {
	if p := b.plans[shape]; p != nil {
		return p, nil
	}
	algo, err := b.pin(shape)
	if err != nil {
		return nil, err
	}
	c, err := b.describe(&shape)
	if err != nil {
		return nil, err
	}
	p := &plan{c, algo}
	if err := b.fits(p); err != nil {
		C.hs_blas_forget(b.lib, c)
		return nil, fmt.Errorf("the algorithm pinned for this shape does not run at this number of tokens: %w", err)
	}
	for old, q := range b.plans { // any one: plans differ in cost, not in results
		if len(b.plans) < maxPlans {
			break
		}
		C.hs_blas_forget(b.lib, q.c)
		delete(b.plans, old)
	}
	b.plans[shape] = p
	return p, nil
}

func (b *blas) describe(m *Matmul) (*C.hs_plan, error) {
	product := m.product(b.workspace)
	var c *C.hs_plan
	if err := b.status(C.hs_blas_plan(b.lib, &product, &c)); err != nil {
		return nil, fmt.Errorf("descriptors: %w", err)
	}
	return c, nil
}

// fits asks the library whether the plan runs, within the workspace.
func (b *blas) fits(p *plan) error {
	var need C.size_t
	if err := b.status(C.hs_blas_check(b.lib, b.d.c, b.handle, p.c, &p.algo, &need)); err != nil {
		return err
	}
	if int(need) > b.workspace {
		return fmt.Errorf("it needs %d bytes of workspace of %d", int(need), b.workspace)
	}
	return nil
}

// pin chooses the algorithm of a shape whatever its token count.
func (b *blas) pin(shape Matmul) (C.hs_algo, error) {
	shape = shape.withTokens(pinnedTokens)
	if algo, ok := b.pinned[shape]; ok {
		return algo, nil
	}
	choices, err := b.choices(&shape)
	if err != nil {
		return C.hs_algo{}, err
	}
	best, most := 0, -1
	for i := range choices {
		n, err := b.accepted(shape, choices[i])
		if err != nil {
			return C.hs_algo{}, err
		}
		if n > most {
			best, most = i, n
		}
		if n == len(probes) {
			break
		}
	}
	b.pinned[shape] = choices[best]
	return choices[best], nil
}

func (b *blas) choices(shape *Matmul) ([]C.hs_algo, error) {
	c, err := b.describe(shape)
	if err != nil {
		return nil, err
	}
	defer C.hs_blas_forget(b.lib, c)
	product := shape.product(b.workspace)
	found := make([]C.hs_algo, 16)
	var n C.int
	err = b.status(C.hs_blas_choices(b.lib, b.d.c, b.handle, c, &product, &found[0], C.int(len(found)), &n))
	if err == nil && n == 0 {
		err = errors.New("no algorithm that does not split K")
	}
	if err != nil {
		return nil, fmt.Errorf("choose an algorithm at %d tokens: %w", pinnedTokens, err)
	}
	return found[:n], nil
}

// accepted is at how many of the probes an algorithm runs.
func (b *blas) accepted(shape Matmul, algo C.hs_algo) (n int, err error) {
	for _, tokens := range probes {
		at := shape.withTokens(tokens)
		c, err := b.describe(&at)
		if err != nil {
			return 0, err
		}
		if b.fits(&plan{c, algo}) == nil {
			n++
		}
		C.hs_blas_forget(b.lib, c)
	}
	return n, nil
}
