package model

import "math"

// reference is the model in float64, written from the formulas alone: one row, token by token, the recurrent form of the
// delta rule, no kernels. It is the oracle for configurations that no reference file covers.
type reference struct {
	cfg Config
	w   map[string][]float64 // by name without the text prefix
}

func newReference(m *Model) *reference {
	r := &reference{cfg: m.Config, w: map[string][]float64{}}
	pre := m.Config.textPrefix()
	for i := range m.params {
		p := &m.params[i]
		v := make([]float32, p.size())
		m.Values(p, v)
		w := make([]float64, len(v))
		for j := range v {
			w[j] = float64(v[j])
		}
		name := p.Name
		if name != headName {
			name = name[len(pre):]
		}
		r.w[name] = w
	}
	return r
}

// logp is the log-prob of each token after the first, and the entropy, at a temperature.
func (r *reference) logp(tokens []int32, temperature float64) (logp, entropy []float64) {
	H := r.cfg.Hidden
	x := make([][]float64, len(tokens))
	for t, id := range tokens {
		x[t] = append([]float64{}, r.w["embed_tokens.weight"][int(id)*H:int(id+1)*H]...)
	}
	for i, kind := range r.cfg.LayerTypes {
		at := "layers." + string(rune('0'+i)) + "."
		n := r.normAll(x, at+"input_layernorm.weight")
		var mixed [][]float64
		if kind == LinearAttention {
			mixed = r.gdn(n, at+"linear_attn.")
		} else {
			mixed = r.attention(n, at+"self_attn.")
		}
		addAll(x, mixed)
		for t, v := range r.normAll(x, at+"post_attention_layernorm.weight") {
			gate, up := r.mul(at+"mlp.gate_proj.weight", v), r.mul(at+"mlp.up_proj.weight", v)
			for j := range gate {
				gate[j] = silu(gate[j]) * up[j]
			}
			addTo(x[t], r.mul(at+"mlp.down_proj.weight", gate))
		}
	}
	head := headName
	if r.cfg.Tied {
		head = "embed_tokens.weight"
	}
	for t, v := range r.normAll(x, "norm.weight")[:len(x)-1] {
		z := r.mul(head, v)
		top, sum, ez := math.Inf(-1), 0.0, 0.0
		for j := range z {
			z[j] /= temperature
			top = max(top, z[j])
		}
		for _, s := range z {
			sum += math.Exp(s - top)
		}
		lse := top + math.Log(sum)
		for _, s := range z {
			ez += math.Exp(s-lse) * s
		}
		logp, entropy = append(logp, z[tokens[t+1]]-lse), append(entropy, lse-ez)
	}
	return logp, entropy
}

func (r *reference) gdn(x [][]float64, at string) [][]float64 {
	s := r.cfg.GDN()
	raw, conv := make([][]float64, len(x)), make([][]float64, len(x))
	w := r.w[at+"conv1d.weight"]
	state := make([][]float64, s.Hv)
	for h := range state {
		state[h] = make([]float64, s.Dk*s.Dv)
	}
	var out [][]float64
	for t := range x {
		raw[t] = r.mul(at+"in_proj_qkv.weight", x[t])
		conv[t] = make([]float64, s.Channels())
		for c := range conv[t] {
			for k := range s.K {
				if from := t - s.K + 1 + k; from >= 0 {
					conv[t][c] += w[c*s.K+k] * raw[from][c]
				}
			}
			conv[t][c] = silu(conv[t][c])
		}
		z, a, b := r.mul(at+"in_proj_z.weight", x[t]), r.mul(at+"in_proj_a.weight", x[t]), r.mul(at+"in_proj_b.weight", x[t])
		y := make([]float64, s.Hv*s.Dv)
		for h := range s.Hv {
			kh := h / (s.Hv / s.Hk)
			q, k := l2(conv[t][kh*s.Dk:(kh+1)*s.Dk]), l2(conv[t][(s.Hk+kh)*s.Dk:(s.Hk+kh+1)*s.Dk])
			v := conv[t][2*s.Hk*s.Dk+h*s.Dv : 2*s.Hk*s.Dk+(h+1)*s.Dv]
			g := -math.Exp(r.w[at+"A_log"][h]) * math.Log1p(math.Exp(a[h]+r.w[at+"dt_bias"][h]))
			o := deltaRule(state[h], q, k, v, g, sigmoid(b[h]))
			norm := 1 / math.Sqrt(dot(o, o)/float64(s.Dv)+r.cfg.Eps)
			for j := range o {
				y[h*s.Dv+j] = r.w[at+"norm.weight"][j] * o[j] * norm * silu(z[h*s.Dv+j])
			}
		}
		out = append(out, r.mul(at+"out_proj.weight", y))
	}
	return out
}

// deltaRule is one step: S *= e^g; u = beta(v - S'k); S += k u'; o = S'q Dk^-0.5.
func deltaRule(S, q, k, v []float64, g, beta float64) []float64 {
	dk, dv := len(k), len(v)
	o := make([]float64, dv)
	for j := range dv {
		read := 0.0
		for i := range dk {
			S[i*dv+j] *= math.Exp(g)
			read += S[i*dv+j] * k[i]
		}
		u := beta * (v[j] - read)
		for i := range dk {
			S[i*dv+j] += k[i] * u
			o[j] += S[i*dv+j] * q[i] / math.Sqrt(float64(dk))
		}
	}
	return o
}

func (r *reference) attention(x [][]float64, at string) [][]float64 {
	c := r.cfg
	var keys, values, out [][]float64
	for t := range x {
		qg, k := r.mul(at+"q_proj.weight", x[t]), r.mul(at+"k_proj.weight", x[t])
		for h := range c.Hk {
			r.normRope(k[h*c.D:(h+1)*c.D], at+"k_norm.weight", t)
		}
		keys, values = append(keys, k), append(values, r.mul(at+"v_proj.weight", x[t]))
		y := make([]float64, c.Hq*c.D)
		for h := range c.Hq {
			q, gate := qg[2*h*c.D:(2*h+1)*c.D], qg[(2*h+1)*c.D:(2*h+2)*c.D]
			r.normRope(q, at+"q_norm.weight", t)
			kv := h / (c.Hq / c.Hk) * c.D
			p, sum := make([]float64, t+1), 0.0
			for s := range p {
				p[s] = math.Exp(dot(q, keys[s][kv:kv+c.D]) / math.Sqrt(float64(c.D)))
				sum += p[s]
			}
			for j := range c.D {
				for s := range p {
					y[h*c.D+j] += p[s] / sum * values[s][kv+j]
				}
				y[h*c.D+j] *= sigmoid(gate[j])
			}
		}
		out = append(out, r.mul(at+"o_proj.weight", y))
	}
	return out
}

// normRope norms a head and rotates its first dims, in place. An odd rotary dim r rotates r+1 dims at the frequencies
// theta^(-2i/r), as the reference library does.
func (r *reference) normRope(v []float64, weight string, pos int) {
	copy(v, r.norm(v, weight))
	dim := int(float64(r.cfg.D) * r.cfg.RotaryFactor)
	half := (dim + 1) / 2
	for i := range half {
		sin, cos := math.Sincos(float64(pos) * math.Pow(r.cfg.RopeTheta, -float64(2*i)/float64(dim)))
		a, b := v[i], v[i+half]
		v[i], v[i+half] = a*cos-b*sin, b*cos+a*sin
	}
}

func (r *reference) normAll(x [][]float64, weight string) [][]float64 {
	out := make([][]float64, len(x))
	for t := range x {
		out[t] = r.norm(x[t], weight)
	}
	return out
}

func (r *reference) norm(x []float64, weight string) []float64 {
	scale := 1 / math.Sqrt(dot(x, x)/float64(len(x))+r.cfg.Eps)
	out := make([]float64, len(x))
	for i := range x {
		out[i] = x[i] * scale * (1 + r.w[weight][i])
	}
	return out
}

func (r *reference) mul(weight string, x []float64) []float64 {
	w := r.w[weight]
	out := make([]float64, len(w)/len(x))
	for i := range out {
		out[i] = dot(w[i*len(x):(i+1)*len(x)], x)
	}
	return out
}

func l2(x []float64) []float64 {
	scale := 1 / math.Sqrt(dot(x, x)+1e-6)
	out := make([]float64, len(x))
	for i := range x {
		out[i] = x[i] * scale
	}
	return out
}

func dot(a, b []float64) float64 {
	s := 0.0
	for i := range a {
		s += a[i] * b[i]
	}
	return s
}

func addTo(dst, src []float64) {
	for i := range dst {
		dst[i] += src[i]
	}
}

func addAll(dst, src [][]float64) {
	for t := range dst {
		addTo(dst[t], src[t])
	}
}

func sigmoid(x float64) float64 { return 1 / (1 + math.Exp(-x)) }
func silu(x float64) float64    { return x * sigmoid(x) }
