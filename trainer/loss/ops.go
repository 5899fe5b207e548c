package loss

import (
	"fmt"
	"hash"
	"hash/fnv"

	"github.com/chewxy/hm"
	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"
)

// Gorgonia has no segment sum, and its min and max give the whole gradient to both sides of a tie, which
// would double every gradient of a first update, where all ratios are 1. These are the operators it lacks,
// over [n] float64 vectors.

func vectorType() hm.Type { return G.TensorType{Dims: 1, Of: tensor.Float64} }

func data(v G.Value) []float64 { return v.Data().([]float64) }

func vector(x []float64) G.Value {
	return tensor.New(tensor.WithShape(len(x)), tensor.WithBacking(x))
}

func hashOf(s string) uint32 {
	h := fnv.New32a()
	fmt.Fprint(h, s)
	return h.Sum32()
}

// segSum: y[i] = sum of x[j] over the entries j of i's segment; 0 where seg[i] < 0. It is its own adjoint.
type segSum struct {
	seg []int // [n], rewritten between runs
}

func (*segSum) Arity() int    { return 1 }
func (*segSum) Type() hm.Type { return hm.NewFnType(vectorType(), vectorType()) }
func (o *segSum) InferShape(s ...G.DimSizer) (tensor.Shape, error) {
	return tensor.Shape{len(o.seg)}, nil
}
func (*segSum) ReturnsPtr() bool        { return false }
func (*segSum) CallsExtern() bool       { return false }
func (*segSum) OverwritesInput() int    { return -1 }
func (o *segSum) WriteHash(h hash.Hash) { fmt.Fprint(h, o.String()) }
func (o *segSum) Hashcode() uint32      { return hashOf(o.String()) }
func (*segSum) String() string          { return "segSum" }
func (*segSum) DiffWRT(int) []bool      { return []bool{true} }

func (o *segSum) SymDiff(_ G.Nodes, _, grad *G.Node) (G.Nodes, error) {
	d, err := G.ApplyOp(&segSum{seg: o.seg}, grad)
	return G.Nodes{d}, err
}

func (o *segSum) Do(v ...G.Value) (G.Value, error) {
	x := data(v[0])
	sums := map[int]float64{}
	for i, s := range o.seg {
		if s >= 0 {
			sums[s] += x[i]
		}
	}
	y := make([]float64, len(x))
	for i, s := range o.seg {
		if s >= 0 {
			y[i] = sums[s]
		}
	}
	return vector(y), nil
}

// extremum: y = min(a, b), or max. A tie counts as a.
type extremum struct {
	max bool
}

func (*extremum) Arity() int { return 2 }
func (*extremum) Type() hm.Type {
	return hm.NewFnType(vectorType(), vectorType(), vectorType())
}
func (*extremum) InferShape(s ...G.DimSizer) (tensor.Shape, error) {
	return s[0].(tensor.Shape).Clone(), nil
}
func (*extremum) ReturnsPtr() bool        { return false }
func (*extremum) CallsExtern() bool       { return false }
func (*extremum) OverwritesInput() int    { return -1 }
func (o *extremum) WriteHash(h hash.Hash) { fmt.Fprint(h, o.String()) }
func (o *extremum) Hashcode() uint32      { return hashOf(o.String()) }
func (o *extremum) String() string        { return fmt.Sprintf("extremum{max:%t}", o.max) }
func (*extremum) DiffWRT(int) []bool      { return []bool{true, true} }

func (o *extremum) first(a, b float64) bool {
	if o.max {
		return a >= b
	}
	return a <= b
}

func (o *extremum) Do(v ...G.Value) (G.Value, error) {
	a, b := data(v[0]), data(v[1])
	y := make([]float64, len(a))
	for i := range a {
		if o.first(a[i], b[i]) {
			y[i] = a[i]
		} else {
			y[i] = b[i] // NaN in either comes out as b's: a NaN in b, or b beside a NaN a
			if a[i] != a[i] {
				y[i] = a[i]
			}
		}
	}
	return vector(y), nil
}

func (o *extremum) SymDiff(in G.Nodes, _, grad *G.Node) (G.Nodes, error) {
	da, err := G.ApplyOp(&pick{o, true}, in[0], in[1], grad)
	if err != nil {
		return nil, err
	}
	db, err := G.ApplyOp(&pick{o, false}, in[0], in[1], grad)
	return G.Nodes{da, db}, err
}

// pick: y = g where the extremum of a, b is the side asked for, else 0.
type pick struct {
	of    *extremum
	first bool
}

func (*pick) Arity() int { return 3 }
func (*pick) Type() hm.Type {
	return hm.NewFnType(vectorType(), vectorType(), vectorType(), vectorType())
}
func (*pick) InferShape(s ...G.DimSizer) (tensor.Shape, error) {
	return s[0].(tensor.Shape).Clone(), nil
}
func (*pick) ReturnsPtr() bool        { return false }
func (*pick) CallsExtern() bool       { return false }
func (*pick) OverwritesInput() int    { return -1 }
func (o *pick) WriteHash(h hash.Hash) { fmt.Fprint(h, o.String()) }
func (o *pick) Hashcode() uint32      { return hashOf(o.String()) }
func (o *pick) String() string        { return fmt.Sprintf("pick{%v first:%t}", o.of, o.first) }

func (o *pick) Do(v ...G.Value) (G.Value, error) {
	a, b, g := data(v[0]), data(v[1]), data(v[2])
	y := make([]float64, len(a))
	for i := range a {
		if o.of.first(a[i], b[i]) == o.first {
			y[i] = g[i]
		}
	}
	return vector(y), nil
}
