package bench

import (
	"harness-s/kernels"
	"harness-s/model"
)

// Cost is the least that an operation takes: floating-point operations of its usual formulation (a multiply-add is two)
// and bytes that must pass between memory and chip when every operand is read once and every result written once, in bf16
// with fp32 statistics. What a kernel does beyond that (recomputed products, scratch) is its loss, not its cost.
type Cost struct {
	FLOP  float64
	Bytes float64
	// Work is what our algorithm multiplies, where it does more than FLOP on purpose; 0: the same.
	Work float64
}

const (
	act  = 2.0 // bytes of an activation
	word = 4.0 // bytes of fp32
)

func f(n int) float64 { return float64(n) }

// matmul is [T,in] x [in,out].
func matmul(T, in, out int) Cost {
	return Cost{FLOP: 2 * f(T) * f(in) * f(out), Bytes: act * (f(T)*f(in) + f(T)*f(out) + f(in)*f(out))}
}

func (c Cost) plus(d Cost) Cost {
	work := 0.0
	if c.Work > 0 || d.Work > 0 {
		work = c.work() + d.work()
	}
	return Cost{FLOP: c.FLOP + d.FLOP, Bytes: c.Bytes + d.Bytes, Work: work}
}

func (c Cost) work() float64 {
	if c.Work > 0 {
		return c.Work
	}
	return c.FLOP
}

// gdnProjections are in_proj_qkv, z, b, a and out_proj.
func gdnProjections(cfg *model.Config, T int) Cost {
	s, value := cfg.GDN(), cfg.GDNHv*cfg.Dv
	return matmul(T, cfg.Hidden, s.Channels()).plus(matmul(T, cfg.Hidden, value)).plus(matmul(T, cfg.Hidden, 2*s.Hv)).
		plus(matmul(T, value, cfg.Hidden))
}

// attentionProjections are q (with the gate), k, v and o.
func attentionProjections(cfg *model.Config, T int) Cost {
	return matmul(T, cfg.Hidden, 2*cfg.Hq*cfg.D).plus(matmul(T, cfg.Hidden, 2*cfg.Hk*cfg.D)).plus(matmul(T, cfg.Hq*cfg.D, cfg.Hidden))
}

// mlpProducts are gate, up and down.
func mlpProducts(cfg *model.Config, T int) Cost {
	return matmul(T, cfg.Hidden, 2*cfg.MLP).plus(matmul(T, cfg.MLP, cfg.Hidden))
}

// passes is an operation that reads and writes n activations so many times.
func passes(times int, n float64) Cost { return Cost{Bytes: act * f(times) * n} }

// gdnForward counts per chunk of C tokens and head the seven products K Kᵀ, Q Kᵀ, K S, A Y, Q S, P V' and Kᵀ V'; memory is
// q, k, v, o, g, beta and A (kept for the backward pass, C a token and head).
func gdnForward(s kernels.GDNShape, T int) Cost {
	small, large := gdnProducts(s)
	return Cost{FLOP: gdnChunks(s, T) * (4*small + 3*large),
		Bytes: act*f(T)*f(s.Channels()+s.Hv*s.Dv) + 2*word*f(T)*f(s.Hv) + act*f(T)*f(s.Hv)*kernels.ChunkLen}
}

// gdnBackward counts the 14 products of the gradient (8 of C x C, 6 with the state) and the forward products done again:
// K Kᵀ, Q Kᵀ, A Y, K S and Kᵀ V'; memory is the forward's reads, do, and a gradient for each input.
func gdnBackward(s kernels.GDNShape, T int) Cost {
	small, large := gdnProducts(s)
	return Cost{FLOP: gdnChunks(s, T) * (11*small + 8*large),
		Bytes: act*f(T)*f(2*s.Channels()+s.Hv*s.Dv) + 4*word*f(T)*f(s.Hv) + act*f(T)*f(s.Hv)*kernels.ChunkLen}
}

func gdnChunks(s kernels.GDNShape, T int) float64 { return f(T) / kernels.ChunkLen * f(s.Hv) }

// gdnProducts are the FLOP of a product [C,D] x [D,C] and of one [C,Dk] x [Dk,Dv].
func gdnProducts(s kernels.GDNShape) (small, large float64) {
	return 2 * kernels.ChunkLen * kernels.ChunkLen * f(s.Dk+s.Dv) / 2, 2 * kernels.ChunkLen * f(s.Dk) * f(s.Dv)
}

// attentionForward: half of the pairs (q, k) of each row, two products; memory is q, o, k, v and lse.
func attentionForward(s kernels.AttnShape, seg kernels.Segments) Cost {
	T := f(seg.Tokens())
	return Cost{FLOP: 2 * pairs(seg) * f(s.Hq) * f(s.D), Bytes: act*T*f(2*s.Hq+2*s.Hk)*f(s.D) + word*T*f(s.Hq)}
}

// attentionBackward: five products; ours is in two kernels, one for dq and one for dk and dv, which form the scores and
// their gradient twice (seven) so that nothing is added up in the order of the blocks.
func attentionBackward(s kernels.AttnShape, seg kernels.Segments) Cost {
	T, one := f(seg.Tokens()), pairs(seg)*f(s.Hq)*f(s.D)
	return Cost{FLOP: 5 * one, Work: 7 * one, Bytes: act*T*f(4*s.Hq+4*s.Hk)*f(s.D) + word*T*f(s.Hq)}
}

// pairs is the sum of the squares of the rows' lengths.
func pairs(seg kernels.Segments) (n float64) {
	for r := range seg.Rows() {
		length := f(int(seg.Cu[r+1] - seg.Cu[r]))
		n += length * length
	}
	return n
}

// headForward is one product over all logits; they never are in memory, in the floor.
func headForward(cfg *model.Config, live int) Cost { return matmul(live, cfg.Hidden, cfg.Vocab) }

// headBackward forms the logits again and then both gradients: three products; dw is fp32, read and written.
func headBackward(cfg *model.Config, live int) Cost {
	c := matmul(live, cfg.Hidden, cfg.Vocab)
	return Cost{FLOP: 3 * c.FLOP, Bytes: act*(2*f(live)*f(cfg.Hidden)+f(cfg.Vocab)*f(cfg.Hidden)) + 2*word*f(cfg.Vocab)*f(cfg.Hidden)}
}

// adamW reads weight, both moments and gradient, writes the first three and the compute copy: 30 bytes a parameter.
func adamW(n int) Cost { return Cost{Bytes: (7*word + act) * f(n)} }
