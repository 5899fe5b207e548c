package kernels

import "math"

// Float64 references of the gated-delta-net ops, written from the recurrence and not from the chunked form
// that the kernels use. They are slow and plain on purpose.

// refGDNGrads is what refGDN gives back: the output, and the gradients for one dO.
type refGDNGrads struct {
	o, dqkv, dg, dbeta []float64
}

// refGDN runs the gated delta rule token by token, forward and backward, over packed rows.
// qkv [T,Ch] (raw, before the l2 norm), g, beta [T,Hv], do [T,Hv,Dv] (nil: forward only).
//
//	S~ = e^g S;  e = v - S~'k;  u = beta e;  S = S~ + k u';  o = S'q
func refGDN(qkv, g, beta, do []float64, s GDNShape, seg Segments) refGDNGrads {
	T := seg.Tokens()
	out := refGDNGrads{o: make([]float64, T*s.Hv*s.Dv)}
	if do != nil {
		out.dqkv = make([]float64, T*s.Channels())
		out.dg = make([]float64, T*s.Hv)
		out.dbeta = make([]float64, T*s.Hv)
	}
	for r := 0; r < seg.Rows(); r++ {
		for h := 0; h < s.Hv; h++ {
			refGDNHead(out, qkv, g, beta, do, s, int(seg.Cu[r]), int(seg.Cu[r+1]), h)
		}
	}
	return out
}

// refGDNHead is one value head of one row, tokens t0 to t1.
func refGDNHead(out refGDNGrads, qkv, g, beta, do []float64, s GDNShape, t0, t1, h int) {
	dk, dv, ch := s.Dk, s.Dv, s.Channels()
	kh := h / (s.Hv / s.Hk)
	qOff, kOff, vOff := kh*dk, s.Hk*dk+kh*dk, 2*s.Hk*dk+h*dv
	n := t1 - t0
	scale := 1 / math.Sqrt(float64(dk))
	q, rq := make([][]float64, n), make([]float64, n)
	k, rk := make([][]float64, n), make([]float64, n)
	for i := range n {
		q[i], rq[i] = refL2(qkv[(t0+i)*ch+qOff:][:dk])
		k[i], rk[i] = refL2(qkv[(t0+i)*ch+kOff:][:dk])
	}
	states := make([][]float64, n+1) // S after token i-1
	states[0] = make([]float64, dk*dv)
	errs := make([][]float64, n)
	for i := range n {
		t := t0 + i
		S := make([]float64, dk*dv)
		for x, y := range states[i] {
			S[x] = math.Exp(g[t*s.Hv+h]) * y
		}
		e := make([]float64, dv)
		for c := range dv {
			e[c] = qkv[t*ch+vOff+c]
			for d := range dk {
				e[c] -= S[d*dv+c] * k[i][d]
			}
		}
		for d := range dk {
			for c := range dv {
				S[d*dv+c] += k[i][d] * beta[t*s.Hv+h] * e[c]
			}
		}
		for c := range dv {
			sum := 0.0
			for d := range dk {
				sum += S[d*dv+c] * q[i][d] * scale
			}
			out.o[(t*s.Hv+h)*dv+c] = sum
		}
		states[i+1], errs[i] = S, e
	}
	if do == nil {
		return
	}
	G := make([]float64, dk*dv) // dL/dS after the current token
	for i := n - 1; i >= 0; i-- {
		t := t0 + i
		b, eg := beta[t*s.Hv+h], math.Exp(g[t*s.Hv+h])
		dO := do[(t*s.Hv+h)*dv:][:dv]
		dq, dkk, du := make([]float64, dk), make([]float64, dk), make([]float64, dv)
		for d := range dk {
			for c := range dv {
				G[d*dv+c] += scale * q[i][d] * dO[c]
				dq[d] += scale * states[i+1][d*dv+c] * dO[c]
			}
		}
		for c := range dv {
			for d := range dk {
				du[c] += G[d*dv+c] * k[i][d]
			}
			out.dbeta[t*s.Hv+h] += du[c] * errs[i][c]
			out.dqkv[t*ch+vOff+c] = b * du[c]
		}
		for d := range dk {
			for c := range dv {
				prev := states[i][d*dv+c]
				dkk[d] += G[d*dv+c]*b*errs[i][c] - eg*prev*b*du[c]
				dS := G[d*dv+c] - k[i][d]*b*du[c]
				out.dg[t*s.Hv+h] += dS * eg * prev
				G[d*dv+c] = eg * dS
			}
		}
		refL2Backward(out.dqkv[t*ch+qOff:][:dk], dq, q[i], rq[i])
		refL2Backward(out.dqkv[t*ch+kOff:][:dk], dkk, k[i], rk[i])
	}
}

// refL2 is x / sqrt(sum x² + 1e-6) and the reciprocal root.
func refL2(x []float64) ([]float64, float64) {
	sum := 1e-6
	for _, v := range x {
		sum += v * v
	}
	r := 1 / math.Sqrt(sum)
	y := make([]float64, len(x))
	for i, v := range x {
		y[i] = v * r
	}
	return y, r
}

// refL2Backward adds r·(dy - y (dy·y)) to dx.
func refL2Backward(dx, dy, y []float64, r float64) {
	dot := 0.0
	for i := range y {
		dot += dy[i] * y[i]
	}
	for i := range y {
		dx[i] += r * (dy[i] - y[i]*dot)
	}
}

func refSigmoid(x float64) float64 { return 1 / (1 + math.Exp(-x)) }

func refSilu(x float64) float64 { return x * refSigmoid(x) }

func refSiluGrad(x float64) float64 {
	s := refSigmoid(x)
	return s * (1 + x*(1-s))
}

// refConv is silu of the causal depthwise convolution of one packed batch, and its gradients (dy nil: forward only).
func refConv(x, w, dy []float64, seg Segments, ch, K int) (y, dx, dw []float64) {
	T := seg.Tokens()
	y, dx, dw = make([]float64, T*ch), make([]float64, T*ch), make([]float64, ch*K)
	for r := 0; r < seg.Rows(); r++ {
		t0, t1 := int(seg.Cu[r]), int(seg.Cu[r+1])
		for t := t0; t < t1; t++ {
			for c := range ch {
				z := 0.0
				for j := range K {
					if src := t - K + 1 + j; src >= t0 {
						z += w[c*K+j] * x[src*ch+c]
					}
				}
				y[t*ch+c] = refSilu(z)
				if dy == nil {
					continue
				}
				dz := dy[t*ch+c] * refSiluGrad(z)
				for j := range K {
					if src := t - K + 1 + j; src >= t0 {
						dx[src*ch+c] += w[c*K+j] * dz
						dw[c*K+j] += dz * x[src*ch+c]
					}
				}
			}
		}
	}
	return y, dx, dw
}

// refGates is g = -exp(aLog)·softplus(a+dtBias), beta = sigmoid(b).
func refGates(a, b, aLog, dtBias []float64, T, hv int) (g, beta []float64) {
	g, beta = make([]float64, T*hv), make([]float64, T*hv)
	for i := range g {
		h := i % hv
		x := a[i] + dtBias[h]
		sp := x
		if x <= 20 {
			sp = math.Log1p(math.Exp(x))
		}
		g[i] = -math.Exp(aLog[h]) * sp
		beta[i] = refSigmoid(b[i])
	}
	return g, beta
}

// refGatesBackward: see facts of softplus' = sigmoid.
func refGatesBackward(dg, dbeta, a, b, aLog, dtBias []float64, T, hv int) (da, db, dALog, dDt []float64) {
	da, db = make([]float64, T*hv), make([]float64, T*hv)
	dALog, dDt = make([]float64, hv), make([]float64, hv)
	g, beta := refGates(a, b, aLog, dtBias, T, hv)
	for i := range da {
		h := i % hv
		da[i] = -math.Exp(aLog[h]) * refSigmoid(a[i]+dtBias[h]) * dg[i]
		db[i] = dbeta[i] * beta[i] * (1 - beta[i])
		dALog[h] += dg[i] * g[i]
		dDt[h] += da[i]
	}
	return da, db, dALog, dDt
}

// refGatedNorm is w·x·rsqrt(mean x²+eps)·silu(z) per row of D, and its gradients (dy nil: forward only).
func refGatedNorm(x, z, w, dy []float64, N, D int, eps float64) (y, dx, dz, dw []float64) {
	y, dx, dz, dw = make([]float64, N*D), make([]float64, N*D), make([]float64, N*D), make([]float64, D)
	for n := range N {
		x, z := x[n*D:][:D], z[n*D:][:D]
		ms := 0.0
		for _, v := range x {
			ms += v * v
		}
		r := 1 / math.Sqrt(ms/float64(D)+eps)
		dot := 0.0
		for i := range D {
			y[n*D+i] = w[i] * x[i] * r * refSilu(z[i])
			if dy != nil {
				dot += x[i] * r * w[i] * dy[n*D+i] * refSilu(z[i])
			}
		}
		if dy == nil {
			continue
		}
		for i := range D {
			q, xh := dy[n*D+i]*refSilu(z[i]), x[i]*r
			dw[i] += q * xh
			dx[n*D+i] = r * (w[i]*q - xh*dot/float64(D))
			dz[n*D+i] = dy[n*D+i] * w[i] * xh * refSiluGrad(z[i])
		}
	}
	return y, dx, dz, dw
}
