package loss

import (
	"fmt"
	"runtime"
	"sync"

	G "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"
)

// compile turns loss.expression into an objective whose derivatives Gorgonia makes.
func compile(c Config) (Loss, error) {
	e, err := parse(c.Expression)
	if err != nil {
		return Loss{}, err
	}
	ex := &expression{root: e, programs: map[int]*program{}}
	if _, err := ex.program(minBucket); err != nil { // type errors show now, not in the first step
		return Loss{}, err
	}
	l := Loss{Name: "expression", Normalise: PerRollout, Advantage: "grpo", Eval: ex.eval}
	if e.uses("seq_sum", "seq_mean") {
		l.Level = Sequence
	}
	return l, nil
}

// expression evaluates one parsed expression. Gorgonia's shapes are fixed, so a program is built for each
// power of two of policy tokens and the rest is padded with weight 0.
type expression struct {
	mu       sync.Mutex
	root     *expr
	programs map[int]*program // by length
}

const minBucket = 64

func (ex *expression) program(n int) (*program, error) {
	if p := ex.programs[n]; p != nil {
		return p, nil
	}
	p, err := buildProgram(ex.root, n)
	if err == nil {
		ex.programs[n] = p
	}
	return p, err
}

// eval gathers the policy tokens, so that nothing at a masked place enters the graph at all.
func (ex *expression) eval(c Config, b Batch) Result {
	ex.mu.Lock()
	defer ex.mu.Unlock()
	res := Result{Coef: make([]float64, len(b.Logp))}
	var at []int // token of each gathered entry
	var seg []int
	for _, row := range b.Rows {
		for t := row.Start; t < row.End; t++ {
			if b.Mask[t] != 0 {
				at = append(at, t)
				seg = append(seg, row.Rollout)
			}
		}
	}
	if len(at) == 0 {
		return res
	}
	n := minBucket
	for n < len(at) {
		n *= 2
	}
	p, err := ex.program(n)
	if err != nil {
		panic(err) // the same expression built at minBucket
	}
	p.fill(c, b, at, seg)
	for i, t := range at {
		rho, _ := ratio(b.Logp[t], b.Old[t])
		res.Stats.note(c, b.Rollouts[seg[i]].Advantage, rho, b.Logp[t], b.Old[t])
	}
	total, grads := p.run()
	res.Loss = total
	for i, t := range at {
		res.Coef[t] = grads[i]
	}
	return res
}

// program is one compiled length.
type program struct {
	n      int
	inputs map[string][]float64 // [n] backing of each input the expression uses
	seg    []int                // [n] rollout of each entry, -1 for padding; shared by the graph's segment ops
	vm     G.VM
	total  G.Value // weighted sum of the tokens' losses
	grad   G.Value // [n] d total / d logp
}

// fill sets the inputs. Padding repeats the first token, so that it is
// as finite as real data, with weight 0.
func (p *program) fill(c Config, b Batch, at, seg []int) {
	for i := range p.n {
		j := i
		p.seg[i] = -1
		if i >= len(at) {
			j = 0
		} else {
			p.seg[i] = seg[i]
		}
		t, r := at[j], b.Rollouts[seg[j]]
		weight := 0.0
		if i < len(at) {
			weight = c.weight(PerRollout, b.Norm, r) * c.samplerWeight(b.Old[t], b.Sampler[t])
		}
		for name, in := range p.inputs {
			switch name {
			case "logp":
				in[i] = b.Logp[t]
			case "detached":
				in[i] = b.Detached[t]
			case "old_logp":
				in[i] = b.Old[t]
			case "sampler_logp":
				in[i] = b.Sampler[t]
			case "advantage":
				in[i] = r.Advantage
			case "mask":
				in[i] = 1 // only policy tokens come here
			case "tokens":
				in[i] = float64(r.Tokens)
			case "weight":
				in[i] = weight
			default:
				panic("loss: input " + name)
			}
		}
	}
}

// run returns the weighted sum and its derivative by each entry's logp.
func (p *program) run() (total float64, grads []float64) {
	p.vm.Reset()
	if err := p.vm.RunAll(); err != nil {
		panic(fmt.Sprintf("loss: the graph of loss.expression: %v", err)) // built and run once at New
	}
	return p.total.Data().(float64), p.grad.Data().([]float64)
}

// builder makes a graph from an expression.
type builder struct {
	g        *G.ExprGraph
	p        *program
	nodes    map[string]*G.Node
	detached bool // inside stop_grad
	err      error
}

func buildProgram(root *expr, n int) (p *program, err error) {
	defer func() { // Gorgonia panics on some shape errors
		if r := recover(); r != nil {
			p, err = nil, fmt.Errorf("cannot build the graph: %v", r)
		}
	}()
	p = &program{n: n, inputs: map[string][]float64{}, seg: make([]int, n)}
	b := &builder{g: G.NewGraph(), p: p, nodes: map[string]*G.Node{}}
	terms := b.build(root)
	if b.err != nil {
		return nil, b.err
	}
	if b.nodes["logp"] == nil {
		return nil, fmt.Errorf("it does not depend on logp outside stop_grad, so that there is nothing to learn from")
	}
	total := b.node(G.Sum(b.node(G.HadamardProd(terms, b.input("weight")))))
	if b.err != nil {
		return nil, b.err
	}
	grads, err := G.Grad(total, b.nodes["logp"])
	if err != nil {
		return nil, fmt.Errorf("cannot differentiate: %w", err)
	}
	// The machine reuses the memory of nodes: a node's own Value may be another's by the end of a run. Read copies.
	G.Read(total, &p.total)
	G.Read(grads[0], &p.grad)
	vm := G.NewTapeMachine(b.g, G.BindDualValues())
	runtime.SetFinalizer(vm, nil) // Gorgonia's finalizer keeps the whole graph alive
	p.vm = vm
	return p, nil
}

// node keeps the first error.
func (b *builder) node(n *G.Node, err error) *G.Node {
	if err != nil && b.err == nil {
		b.err = err
	}
	return n
}

// input is the vector of that name, made on first use: an unused input would be an error at run time.
func (b *builder) input(name string) *G.Node {
	if n := b.nodes[name]; n != nil {
		return n
	}
	back := make([]float64, b.p.n)
	b.p.inputs[name] = back
	n := G.NewVector(b.g, tensor.Float64, G.WithShape(b.p.n), G.WithName(name),
		G.WithValue(tensor.New(tensor.WithShape(b.p.n), tensor.WithBacking(back))))
	b.nodes[name] = n
	return n
}

func (b *builder) constant(x float64) *G.Node {
	v := make([]float64, b.p.n)
	for i := range v {
		v[i] = x
	}
	return G.NewConstant(tensor.New(tensor.WithShape(b.p.n), tensor.WithBacking(v)))
}

func (b *builder) build(e *expr) *G.Node {
	if e.op == "stop_grad" {
		outer := b.detached
		b.detached = true
		n := b.build(e.args[0])
		b.detached = outer
		return n
	}
	var a []*G.Node
	for _, arg := range e.args {
		n := b.build(arg)
		if b.err != nil {
			return nil
		}
		a = append(a, n)
	}
	switch e.op {
	case "num":
		return b.constant(e.num)
	case "var":
		if e.name == "logp" && b.detached {
			return b.input("detached") // the same values, not differentiated
		}
		return b.input(e.name)
	case "neg":
		return b.node(G.Neg(a[0]))
	case "+":
		return b.node(G.Add(a[0], a[1]))
	case "-":
		return b.node(G.Sub(a[0], a[1]))
	case "*":
		return b.node(G.HadamardProd(a[0], a[1]))
	case "/":
		return b.node(G.HadamardDiv(a[0], a[1]))
	case "exp":
		return b.node(G.Exp(a[0]))
	case "log":
		return b.node(G.Log(a[0]))
	case "sqrt":
		return b.node(G.Sqrt(a[0]))
	case "abs":
		return b.node(G.ApplyOp(&extremum{max: true}, a[0], b.node(G.Neg(a[0]))))
	case "min", "max":
		return b.node(G.ApplyOp(&extremum{max: e.op == "max"}, a[0], a[1]))
	case "clip":
		low := b.node(G.ApplyOp(&extremum{max: true}, a[0], a[1]))
		if b.err != nil {
			return nil
		}
		return b.node(G.ApplyOp(&extremum{}, low, a[2]))
	case "seq_sum":
		return b.node(G.ApplyOp(&segSum{seg: b.p.seg}, a[0]))
	case "seq_mean":
		sum := b.node(G.ApplyOp(&segSum{seg: b.p.seg}, a[0]))
		if b.err != nil {
			return nil
		}
		return b.node(G.HadamardDiv(sum, b.input("tokens")))
	}
	panic("loss: operator " + e.op)
}
