package kernels

import "math"

// Float64 references of the attention ops.

// refNormRope is one head: RMS norm with (1+w), then the half-split rotation of the leading rotary dims.
// dy nil: forward only. dw is added to.
func refNormRope(x, w, dy, dw []float64, pos int, s AttnShape) (y, dx []float64) {
	D, half := s.D, s.Rotary/2
	ms := 0.0
	for _, v := range x {
		ms += v * v
	}
	r := 1 / math.Sqrt(ms/float64(D)+float64(s.Eps))
	n := make([]float64, D)
	for i := range D {
		n[i] = x[i] * r * (1 + w[i])
	}
	y = append([]float64(nil), n...)
	dn := append([]float64(nil), dy...)
	for i := range half {
		sin, cos := math.Sincos(float64(pos) * math.Pow(s.Theta, -2*float64(i)/float64(s.Rotary)))
		y[i] = n[i]*cos - n[i+half]*sin
		y[i+half] = n[i+half]*cos + n[i]*sin
		if dy != nil {
			dn[i] = dy[i]*cos + dy[i+half]*sin
			dn[i+half] = dy[i+half]*cos - dy[i]*sin
		}
	}
	if dy == nil {
		return y, nil
	}
	dot := 0.0
	for i := range D {
		dw[i] += dn[i] * x[i] * r
		dot += dn[i] * (1 + w[i]) * x[i] * r
	}
	dx = make([]float64, D)
	for i := range D {
		dx[i] = r * (dn[i]*(1+w[i]) - x[i]*r*dot/float64(D))
	}
	return y, dx
}

// refQKNormRope: see Mixer.QKNormRope. qg [T,Hq,2D], k [T,Hk,D].
func refQKNormRope(qg, k, wq, wk []float64, pos []int32, T int, s AttnShape) (qOut, kOut []float64) {
	for t := range T {
		for h := range s.Hq {
			y, _ := refNormRope(qg[(t*s.Hq+h)*2*s.D:][:s.D], wq, nil, nil, int(pos[t]), s)
			qOut = append(qOut, y...)
		}
		for h := range s.Hk {
			y, _ := refNormRope(k[(t*s.Hk+h)*s.D:][:s.D], wk, nil, nil, int(pos[t]), s)
			kOut = append(kOut, y...)
		}
	}
	return qOut, kOut
}

// refQKNormRopeBackward gives the query halves only (dq [T,Hq,D]).
func refQKNormRopeBackward(dqOut, dkOut, qg, k, wq, wk []float64, pos []int32, T int, s AttnShape) (dq, dk, dwq, dwk []float64) {
	dwq, dwk = make([]float64, s.D), make([]float64, s.D)
	for t := range T {
		for h := range s.Hq {
			_, dx := refNormRope(qg[(t*s.Hq+h)*2*s.D:][:s.D], wq, dqOut[(t*s.Hq+h)*s.D:][:s.D], dwq, int(pos[t]), s)
			dq = append(dq, dx...)
		}
		for h := range s.Hk {
			_, dx := refNormRope(k[(t*s.Hk+h)*s.D:][:s.D], wk, dkOut[(t*s.Hk+h)*s.D:][:s.D], dwk, int(pos[t]), s)
			dk = append(dk, dx...)
		}
	}
	return dq, dk, dwq, dwk
}

// refAttn is what refAttention gives back.
type refAttn struct{ o, lse, dq, dk, dv []float64 }

// refAttention is causal softmax attention within each row, with its gradients for do (nil: forward only).
func refAttention(q, k, v, do []float64, s AttnShape, seg Segments) refAttn {
	T, D := seg.Tokens(), s.D
	out := refAttn{o: make([]float64, T*s.Hq*D), lse: make([]float64, T*s.Hq)}
	if do != nil {
		out.dq, out.dk, out.dv = make([]float64, T*s.Hq*D), make([]float64, T*s.Hk*D), make([]float64, T*s.Hk*D)
	}
	scale := 1 / math.Sqrt(float64(D))
	for r := 0; r < seg.Rows(); r++ {
		for t := int(seg.Cu[r]); t < int(seg.Cu[r+1]); t++ {
			for h := range s.Hq {
				refAttentionRow(out, q, k, v, do, s, int(seg.Cu[r]), t, h, scale)
			}
		}
	}
	return out
}

// refAttentionRow is query t of head h over keys t0..t.
func refAttentionRow(out refAttn, q, k, v, do []float64, s AttnShape, t0, t, h int, scale float64) {
	D, kh := s.D, h/(s.Hq/s.Hk)
	qr := q[(t*s.Hq+h)*D:][:D]
	p := make([]float64, t-t0+1)
	m := math.Inf(-1)
	for j := range p {
		for d := range D {
			p[j] += scale * qr[d] * k[((t0+j)*s.Hk+kh)*D+d]
		}
		m = math.Max(m, p[j])
	}
	sum := 0.0
	for j := range p {
		p[j] = math.Exp(p[j] - m)
		sum += p[j]
	}
	out.lse[t*s.Hq+h] = m + math.Log(sum)
	o := out.o[(t*s.Hq+h)*D:][:D]
	for j := range p {
		p[j] /= sum
		for d := range D {
			o[d] += p[j] * v[((t0+j)*s.Hk+kh)*D+d]
		}
	}
	if do == nil {
		return
	}
	dor := do[(t*s.Hq+h)*D:][:D]
	delta := 0.0
	for d := range D {
		delta += dor[d] * o[d]
	}
	for j := range p {
		kv := ((t0+j)*s.Hk + kh) * D
		dp := 0.0
		for d := range D {
			dp += dor[d] * v[kv+d]
			out.dv[kv+d] += p[j] * dor[d]
		}
		ds := scale * p[j] * (dp - delta)
		for d := range D {
			out.dq[(t*s.Hq+h)*D+d] += ds * k[kv+d]
			out.dk[kv+d] += ds * qr[d]
		}
	}
}

// refOutputGate is o·sigmoid(gate) and its gradients (dgate [T,Hq,D]).
func refOutputGate(o, qg, dy []float64, T int, s AttnShape) (y, do, dgate []float64) {
	n := T * s.Hq * s.D
	y, do, dgate = make([]float64, n), make([]float64, n), make([]float64, n)
	for i := range n {
		row, d := i/s.D, i%s.D
		sg := refSigmoid(qg[row*2*s.D+s.D+d])
		y[i] = o[i] * sg
		if dy != nil {
			do[i] = dy[i] * sg
			dgate[i] = dy[i] * o[i] * sg * (1 - sg)
		}
	}
	return y, do, dgate
}
