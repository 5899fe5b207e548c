package loss

import (
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// The language of loss.expression: numbers, + - * /, unary -, parentheses, the variables and functions below.
// The expression is the loss of one policy token, to be minimised; the normaliser weighs and sums it.

// variables an expression may use, each with one value a policy token.
var variables = []string{"logp", "old_logp", "sampler_logp", "advantage", "mask", "tokens"}

// functions an expression may use, with their number of arguments.
var functions = map[string]int{
	"exp": 1, "log": 1, "abs": 1, "sqrt": 1, "min": 2, "max": 2, "clip": 3,
	"stop_grad": 1, "seq_sum": 1, "seq_mean": 1,
}

// maxExpr bounds an expression: its length in bytes and its depth.
const (
	maxExpr  = 4096
	maxDepth = 64
)

// expr is a node of a parsed expression.
type expr struct {
	op   string // "num", "var", an operator + - * / neg, or a function's name
	num  float64
	name string // of a variable
	args []*expr
}

type parser struct {
	src   string
	pos   int
	depth int
}

// parse reads a whole expression. Errors give the 1-based column.
func parse(src string) (*expr, error) {
	if len(src) > maxExpr {
		return nil, fmt.Errorf("%d bytes long, the most is %d", len(src), maxExpr)
	}
	p := &parser{src: src}
	e, err := p.sum()
	if err != nil {
		return nil, err
	}
	if p.peek() != 0 {
		return nil, p.errorf("unexpected %s", p.token())
	}
	return e, nil
}

func (p *parser) errorf(format string, args ...any) error {
	return fmt.Errorf("column %d: %s", p.pos+1, fmt.Sprintf(format, args...))
}

// peek is the next byte after blanks, 0 at the end.
func (p *parser) peek() byte {
	for p.pos < len(p.src) && strings.IndexByte(" \t\r\n", p.src[p.pos]) >= 0 {
		p.pos++
	}
	if p.pos == len(p.src) {
		return 0
	}
	return p.src[p.pos]
}

func (p *parser) token() string {
	if p.peek() == 0 {
		return "end of expression"
	}
	r, _ := utf8.DecodeRuneInString(p.src[p.pos:])
	return strconv.Quote(string(r))
}

func (p *parser) expect(c byte) error {
	if p.peek() != c {
		return p.errorf("want %q, found %s", string(c), p.token())
	}
	p.pos++
	return nil
}

// sum := product { (+|-) product }
func (p *parser) sum() (*expr, error) {
	return p.chain("+-", p.product)
}

// product := unary { (*|/) unary }
func (p *parser) product() (*expr, error) {
	return p.chain("*/", p.unary)
}

func (p *parser) chain(ops string, operand func() (*expr, error)) (*expr, error) {
	p.depth++
	defer func() { p.depth-- }()
	if p.depth > maxDepth {
		return nil, p.errorf("nested deeper than %d", maxDepth)
	}
	left, err := operand()
	if err != nil {
		return nil, err
	}
	for {
		c := p.peek()
		if c == 0 || strings.IndexByte(ops, c) < 0 {
			return left, nil
		}
		p.pos++
		right, err := operand()
		if err != nil {
			return nil, err
		}
		left = fold(&expr{op: string(c), args: []*expr{left, right}})
	}
}

// unary := - unary | atom
func (p *parser) unary() (*expr, error) {
	if p.peek() != '-' {
		return p.atom()
	}
	p.pos++
	p.depth++
	defer func() { p.depth-- }()
	if p.depth > maxDepth {
		return nil, p.errorf("nested deeper than %d", maxDepth)
	}
	arg, err := p.unary()
	if err != nil {
		return nil, err
	}
	return fold(&expr{op: "neg", args: []*expr{arg}}), nil
}

// atom := number | name | name ( args ) | ( sum )
func (p *parser) atom() (*expr, error) {
	c := p.peek()
	switch {
	case c == '(':
		p.pos++
		e, err := p.sum()
		if err != nil {
			return nil, err
		}
		return e, p.expect(')')
	case c >= '0' && c <= '9' || c == '.':
		return p.number()
	case isLetter(c):
		return p.named()
	}
	return nil, p.errorf("want a number, a name or (, found %s", p.token())
}

func isLetter(c byte) bool { return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c == '_' }
func isDigit(c byte) bool  { return c >= '0' && c <= '9' }

func (p *parser) number() (*expr, error) {
	end := p.pos
	for end < len(p.src) {
		c := p.src[end]
		exponentSign := (c == '-' || c == '+') && strings.IndexByte("eE", p.src[end-1]) >= 0
		if !isDigit(c) && c != '.' && c != 'e' && c != 'E' && !exponentSign {
			break
		}
		end++
	}
	x, err := strconv.ParseFloat(p.src[p.pos:end], 64)
	if err != nil {
		return nil, p.errorf("%q is not a number", p.src[p.pos:end])
	}
	p.pos = end
	return &expr{op: "num", num: x}, nil
}

func (p *parser) named() (*expr, error) {
	start := p.pos
	for p.pos < len(p.src) && (isLetter(p.src[p.pos]) || isDigit(p.src[p.pos])) {
		p.pos++
	}
	name := p.src[start:p.pos]
	if p.peek() == '(' {
		return p.call(name, start)
	}
	for _, v := range variables {
		if v == name {
			return &expr{op: "var", name: name}, nil
		}
	}
	p.pos = start
	return nil, p.errorf("no variable %q; there are %s", name, strings.Join(variables, ", "))
}

func (p *parser) call(name string, start int) (*expr, error) {
	want, ok := functions[name]
	if !ok {
		p.pos = start
		return nil, p.errorf("no function %q; there are exp, log, abs, sqrt, min, max, clip, stop_grad, seq_sum and seq_mean", name)
	}
	p.pos++ // (
	e := &expr{op: name}
	for {
		arg, err := p.sum()
		if err != nil {
			return nil, err
		}
		e.args = append(e.args, arg)
		if p.peek() != ',' {
			break
		}
		p.pos++
	}
	if err := p.expect(')'); err != nil {
		return nil, err
	}
	if len(e.args) != want {
		p.pos = start
		return nil, p.errorf("%s takes %d arguments, not %d", name, want, len(e.args))
	}
	return e, nil
}

// fold computes constant subexpressions, so that 1-0.2 is one number.
func fold(e *expr) *expr {
	for _, a := range e.args {
		if a.op != "num" {
			return e
		}
	}
	a := e.args[0].num
	var x float64
	switch e.op {
	case "neg":
		x = -a
	case "+":
		x = a + e.args[1].num
	case "-":
		x = a - e.args[1].num
	case "*":
		x = a * e.args[1].num
	case "/":
		x = a / e.args[1].num
	default:
		return e
	}
	return &expr{op: "num", num: x}
}

// uses says whether the expression calls any of the named functions.
func (e *expr) uses(names ...string) bool {
	for _, n := range names {
		if e.op == n {
			return true
		}
	}
	for _, a := range e.args {
		if a.uses(names...) {
			return true
		}
	}
	return false
}
