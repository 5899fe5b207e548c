//go:build cgo

package kernels

import (
	"fmt"
	"math"
	"slices"
	"testing"
)

// refHead is log-prob, entropy and lse of one row in float64, and dL/dx of L = logp.
func refHead(z []float64, y int) (logp, entropy, lse float64, dz []float64) {
	m := slices.Max(z)
	sum := 0.0
	for _, x := range z {
		sum += math.Exp(x - m)
	}
	lse = m + math.Log(sum)
	dz = make([]float64, len(z))
	for v, x := range z {
		p := math.Exp(x - lse)
		entropy += p * (lse - x)
		dz[v] = -p
	}
	dz[y]++
	return z[y] - lse, entropy, lse, dz
}

type headCase struct {
	T, V, H int
	invTemp float32
	scale   float64 // of the weights: large ones give peaked rows
}

var headCases = []headCase{
	{5, 1031, 24, 1, 0.3}, {40, 33, 17, 1 / 0.7, 0.5}, {3, 1, 3, 1, 1}, {1, 2, 1, 1, 1}, {17, 15, 31, 1, 6}, {9, 4096, 16, 0.5, 1}, {33, 257, 65, 1, 3}, {60, 40000, 3, 1, 0.5},
}

// headRig holds one head with targets, of which every third row has none, and every row with t%5 == 1 no gradient.
type headRig struct {
	*rig
	c           headCase
	h, m        []float32
	targets     []int32
	coef        []float32
	w           Weight
	logp, ent   Buffer
	lse, dh, dw Buffer
	tb, hb      Buffer
}

func newHeadRig(t testing.TB, isa string, threads int, c headCase) *headRig {
	r := &headRig{rig: newRig(t, isa, threads), c: c}
	r.h, r.m = r.normal(c.T*c.H, 1), r.normal(c.V*c.H, c.scale)
	r.coef = r.normal(c.T, 1)
	r.targets = make([]int32, c.T)
	for i := range r.targets {
		r.targets[i] = int32(r.rng.IntN(c.V))
		if i%3 == 2 {
			r.targets[i] = -1
		}
		if i%5 == 1 {
			r.coef[i] = 0
		}
	}
	r.w = r.weight(r.m, c.V, c.H)
	r.tb, r.hb = r.ints(r.targets), r.buf(r.h)
	r.logp, r.ent, r.lse = r.fill(c.T, nan32), r.fill(c.T, nan32), r.fill(c.T, nan32)
	r.dh, r.dw = r.fill(c.T*c.H, nan32), r.fill(c.V*c.H, 0)
	return r
}

func (r *headRig) run() {
	c := r.c
	r.HeadForward(r.logp, r.ent, r.lse, r.hb, r.w, r.tb, c.T, c.invTemp)
	r.HeadBackward(r.dh, r.dw, r.hb, r.w, r.tb, r.lse, r.coef, c.invTemp)
}

func TestHead(t *testing.T) {
	eachISA(t, func(t *testing.T, isa string) {
		for _, c := range headCases {
			r := newHeadRig(t, isa, 2, c)
			r.run()
			what := fmt.Sprintf("%+v", c)
			logp, ent, lse := make([]float64, c.T), make([]float64, c.T), make([]float64, c.T)
			dh, dw := make([]float64, c.T*c.H), make([]float64, c.V*c.H)
			size := 1.0
			for i, y := range r.targets {
				if y < 0 {
					continue
				}
				z := make([]float64, c.V)
				for v := range z {
					for j := range c.H {
						z[v] += float64(r.h[i*c.H+j]) * float64(r.m[v*c.H+j]) * float64(c.invTemp)
					}
					size = max(size, math.Abs(z[v]))
				}
				var dz []float64
				logp[i], ent[i], lse[i], dz = refHead(z, int(y))
				for v := range z {
					g := dz[v] * float64(r.coef[i]) * float64(c.invTemp)
					for j := range c.H {
						dh[i*c.H+j] += g * float64(r.m[v*c.H+j])
						dw[v*c.H+j] += g * float64(r.h[i*c.H+j])
					}
				}
			}
			near(t, what+" logp", r.get(r.logp), logp, 1e-6, size)
			near(t, what+" entropy", r.get(r.ent), ent, 2e-6, size)
			near(t, what+" lse", r.get(r.lse), lse, 1e-6, size)
			near(t, what+" dh", r.get(r.dh), dh, 1e-5, size*c.scale)
			near(t, what+" dw", r.get(r.dw), dw, 1e-5, size)
			for i, l := range r.get(r.logp) {
				if l > 0 {
					t.Errorf("%s: log-prob %v at %d is above 0", what, l, i)
				}
			}
		}
	})
}

// TestHeadVocabulary meets the chunking of a real vocabulary (248,320 ids) and the accuracy of its sums.
func TestHeadVocabulary(t *testing.T) {
	const V, H, T = 248320, 2, 20
	r := newRig(t, "", 2)
	m := r.normal(V*H, 0.5)
	w := r.weight(m, V, H)
	h := r.normal(T*H, 1)
	targets := make([]int32, T)
	for i := range targets {
		targets[i] = int32(r.rng.IntN(V))
	}
	targets[0], targets[1] = 0, V-1
	logp, ent, lse := r.fill(T, nan32), r.fill(T, nan32), r.fill(T, nan32)
	r.HeadForward(logp, ent, lse, r.buf(h), w, r.ints(targets), T, 1)
	want, wantE := make([]float64, T), make([]float64, T)
	z := make([]float64, V)
	for i, y := range targets {
		for v := range z {
			z[v] = float64(h[i*H])*float64(m[v*H]) + float64(h[i*H+1])*float64(m[v*H+1])
		}
		want[i], wantE[i], _, _ = refHead(z, int(y))
	}
	near(t, "logp", r.get(logp), want, 3e-7, 1)
	near(t, "entropy", r.get(ent), wantE, 3e-7, 1)
}

func TestHeadThreadsAndRows(t *testing.T) {
	c := headCase{T: 150, V: 1031, H: 48, invTemp: 1.25, scale: 0.5}
	eachISA(t, func(t *testing.T, isa string) {
		onThreads(t, isa, func(one *rig) [][]float32 {
			r := newHeadRig(t, isa, one.threads, c)
			r.run()
			return [][]float32{r.get(r.logp), r.get(r.ent), r.get(r.lse), r.get(r.dh), r.get(r.dw)}
		})
		r := newHeadRig(t, isa, 2, c)
		r.run()
		for _, i := range []int{0, 7, 28, 149} {
			l, e, s, dh := r.fill(1, nan32), r.fill(1, nan32), r.fill(1, nan32), r.fill(c.H, nan32)
			h, y := r.hb.Slice(i*c.H, c.H), r.tb.Slice(i, 1)
			r.HeadForward(l, e, s, h, r.w, y, 1, c.invTemp)
			r.HeadBackward(dh, r.fill(c.V*c.H, 0), h, r.w, y, s, r.coef[i:i+1], c.invTemp)
			what := fmt.Sprintf("row %d alone", i)
			sameBits(t, what, r.get(l), r.get(r.logp.Slice(i, 1)))
			sameBits(t, what, r.get(e), r.get(r.ent.Slice(i, 1)))
			sameBits(t, what, r.get(s), r.get(r.lse.Slice(i, 1)))
			sameBits(t, what, r.get(dh), r.get(r.dh.Slice(i*c.H, c.H)))
		}
	})
}

// TestHeadPoison: NaN in the rows without a target, and in the backward pass in those without a gradient, changes no bit.
func TestHeadPoison(t *testing.T) {
	c := headCase{T: 40, V: 130, H: 33, invTemp: 1, scale: 0.5}
	eachISA(t, func(t *testing.T, isa string) {
		clean := newHeadRig(t, isa, 2, c)
		clean.run()
		r := newHeadRig(t, isa, 2, c)
		h := slices.Clone(r.h)
		for i, y := range r.targets {
			for j := range c.H {
				if y < 0 {
					h[i*c.H+j] = nan32
				}
			}
		}
		r.Upload(r.hb, h)
		r.HeadForward(r.logp, r.ent, r.lse, r.hb, r.w, r.tb, c.T, c.invTemp)
		lse := r.get(r.lse)
		for i := range r.targets {
			if r.coef[i] == 0 || r.targets[i] < 0 {
				lse[i] = nan32
				for j := range c.H {
					h[i*c.H+j] = float32(math.Inf(1))
				}
			}
		}
		sameBits(t, "logp", r.get(r.logp), clean.get(clean.logp))
		r.Upload(r.hb, h)
		r.Upload(r.lse, lse)
		r.HeadBackward(r.dh, r.dw, r.hb, r.w, r.tb, r.lse, r.coef, c.invTemp)
		sameBits(t, "dh", r.get(r.dh), clean.get(clean.dh))
		sameBits(t, "dw", r.get(r.dw), clean.get(clean.dw))
		for i := range r.targets {
			if r.coef[i] != 0 && r.targets[i] >= 0 {
				continue
			}
			for _, x := range r.get(r.dh.Slice(i*c.H, c.H)) {
				if x != 0 {
					t.Fatalf("row %d has no gradient, dh is %v", i, x)
				}
			}
		}
	})
}

// TestHeadPeaked: at p = 0.9999 and beyond the gradient 1-p of the target keeps its size.
func TestHeadPeaked(t *testing.T) {
	eachISA(t, func(t *testing.T, isa string) {
		for _, gap := range []float32{7, 10, 13} {
			r := newRig(t, isa, 1)
			w := r.weight([]float32{gap, 0, 0}, 3, 1)
			one, y := r.fill(1, 1), r.ints([]int32{0})
			l, e, s := r.fill(1, 0), r.fill(1, 0), r.fill(1, 0)
			dh, dw := r.fill(1, nan32), r.fill(3, 0)
			r.HeadForward(l, e, s, one, w, y, 1, 1)
			r.HeadBackward(dh, dw, one, w, y, s, []float32{1}, 1)
			rest := 2 * math.Exp(-float64(gap)) / (1 + 2*math.Exp(-float64(gap)))
			got := float64(r.get(dw)[0])
			if math.Abs(got-rest) > 1e-5*rest {
				t.Errorf("gap %v: 1-p is %v, want %v", gap, got, rest)
			}
			if lp := float64(r.get(l)[0]); math.Abs(lp-math.Log1p(-rest)) > 1.2e-7 || lp > 0 {
				t.Errorf("gap %v: log-prob %v, want %v", gap, lp, math.Log1p(-rest))
			}
		}
	})
}

// TestLogprobNeverAboveZero: where nearly all probability is on one id, rounding must not lift its log-prob above 0,
// nor make it anything but 0 where it is the only id.
func TestLogprobNeverAboveZero(t *testing.T) {
	eachISA(t, func(t *testing.T, isa string) {
		r := newRig(t, isa, 1)
		for V := 1; V < 40; V++ {
			const N = 64
			x := r.normal(N*V, 3)
			targets := make([]int32, N)
			for i := range targets {
				targets[i] = int32(r.rng.IntN(V))
				x[i*V+int(targets[i])] += float32(12 + 8*r.rng.Float64()) // 1-p from 1e-4 to nothing
			}
			// the logits of row i are column i of the weights
			w, h := make([]float32, V*N), make([]float32, N*N)
			for i := range N {
				h[i*N+i] = 1
				for v := range V {
					w[v*N+i] = x[i*V+v]
				}
			}
			W, H, Z := r.weight(w, V, N), r.buf(h), r.buf(x)
			for _, temp := range []float32{1, 0.7, 0.9, 1.3} {
				l, e, lse := r.fill(N, nan32), r.fill(N, nan32), r.fill(N, nan32)
				r.HeadForward(l, e, lse, H, W, r.ints(targets), N, 1/temp)
				all := r.get(l)
				p := make([]SampleParams, N)
				for i := range p {
					p[i] = SampleParams{Temperature: temp, TopP: []float32{1, 0.999}[i%2], TopK: i % 3, Seed: uint64(i)}
				}
				for _, s := range r.Sample(Z, p, V) {
					all = append(all, s.Logprob)
				}
				_, top := r.TopLogprobs(Z, 3, V, 1/temp)
				for _, lp := range append(all, top...) {
					if !(lp <= 0) || V == 1 && lp != 0 {
						t.Fatalf("log-prob %g of %d ids at temperature %g", lp, V, temp)
					}
				}
			}
		}
	})
}

/* ------------------------------------------------------------------ sampling */

// TestSampleLogprobBits: whatever is drawn has the log-prob and entropy bits that HeadForward gives it.
func TestSampleLogprobBits(t *testing.T) {
	const N, V, H = 23, 1031, 40
	eachISA(t, func(t *testing.T, isa string) {
		for _, temp := range []float32{1, 0.7, 0} {
			r := newRig(t, isa, 2)
			w, h := r.weight(r.normal(V*H, 0.4), V, H), r.buf(r.normal(N*H, 1))
			z := r.fill(N*V, nan32)
			r.Logits(z, h, w, N)
			p := make([]SampleParams, N)
			for i := range p {
				p[i] = SampleParams{Temperature: temp, TopP: 1, Seed: uint64(i * 77), Counter: uint64(i)}
			}
			drawn := r.Sample(z, p, V)
			it := float32(1)
			if temp > 0 {
				it = 1 / temp
			}
			var ids []int32
			var lp, ent []float32
			for i, s := range drawn {
				ids, lp, ent = append(ids, s.ID), append(lp, s.Logprob), append(ent, s.Entropy)
				if one := r.Sample(z.Slice(i*V, V), p[i:i+1], V)[0]; one != s {
					t.Fatalf("row %d alone drew %+v, in the batch %+v", i, one, s)
				}
			}
			l, e, lse := r.fill(N, nan32), r.fill(N, nan32), r.fill(N, nan32)
			r.HeadForward(l, e, lse, h, w, r.ints(ids), N, it)
			sameBits(t, "log-prob", lp, r.get(l))
			sameBits(t, "entropy", ent, r.get(e))
		}
	})
}

// TestSampleFrequencies draws often and compares counts with probabilities, for each way to restrict the draw.
func TestSampleFrequencies(t *testing.T) {
	logits := []float32{1, 3, 0.5, 2, 2, -1, float32(math.Inf(-1)), 2.5}
	const temp, n = 0.8, 40000
	weight := func(ids ...int) map[int32]float64 {
		out, sum := map[int32]float64{}, 0.0
		for _, i := range ids {
			sum += math.Exp(float64(logits[i]) / temp)
		}
		for _, i := range ids {
			out[int32(i)] = math.Exp(float64(logits[i])/temp) / sum
		}
		return out
	}
	cases := []struct {
		name string
		p    SampleParams
		want map[int32]float64
	}{
		{"all", SampleParams{TopP: 1}, weight(0, 1, 2, 3, 4, 5, 7)},
		{"top-k 3 (a tie goes to the lower id)", SampleParams{TopP: 1, TopK: 3}, weight(1, 7, 3)},
		{"top-k beyond the vocabulary", SampleParams{TopP: 1, TopK: 99}, weight(0, 1, 2, 3, 4, 5, 7)},
		{"top-p", SampleParams{TopP: 0.6}, weight(1, 7)},
		{"top-p tiny", SampleParams{TopP: 1e-9}, weight(1)},
		{"top-k then top-p", SampleParams{TopP: 0.9, TopK: 3}, weight(1, 7, 3)},
		{"top-k then a smaller top-p", SampleParams{TopP: 0.75, TopK: 3}, weight(1, 7)},
		{"allowed", SampleParams{TopP: 1, Allowed: []int32{5, 0, 6, 99, -1, 5, 0}}, weight(0, 5)},
		{"allowed with top-k", SampleParams{TopP: 1, TopK: 1, Allowed: []int32{5, 0, 0}}, weight(0)},
	}
	eachISA(t, func(t *testing.T, isa string) {
		r := newRig(t, isa, 2)
		batch := make([]float32, 0, 100*len(logits))
		for range 100 {
			batch = append(batch, logits...)
		}
		z := r.buf(batch)
		for _, c := range cases {
			counts := map[int32]int{}
			p := make([]SampleParams, 100)
			for at := 0; at < n; at += len(p) {
				for i := range p {
					p[i] = c.p
					p[i].Temperature, p[i].Seed, p[i].Counter = temp, 99, uint64(at+i)
				}
				for _, s := range r.Sample(z, p, len(logits)) {
					want, ok := c.want[s.ID]
					if !ok {
						t.Fatalf("%s: drew %d", c.name, s.ID)
					}
					if math.Abs(float64(s.Logprob)-math.Log(want)) > 1e-6 {
						t.Fatalf("%s: log-prob of %d is %v, want %v", c.name, s.ID, s.Logprob, math.Log(want))
					}
					counts[s.ID]++
				}
			}
			for id, want := range c.want {
				sigma := math.Sqrt(want * (1 - want) / n)
				if got := float64(counts[id]) / n; math.Abs(got-want) > 5*sigma+1e-9 {
					t.Errorf("%s: id %d drawn %.4f of the time, want %.4f", c.name, id, got, want)
				}
			}
		}
	})
}

// TestSampleHostile: logits that are not finite give ID -1, never an id out of range.
func TestSampleHostile(t *testing.T) {
	inf := float32(math.Inf(1))
	eachISA(t, func(t *testing.T, isa string) {
		for _, V := range oddSizes {
			r := newRig(t, isa, 1)
			for _, bad := range []float32{nan32, inf} {
				z := r.normal(V, 1)
				z[V/2] = bad
				expectNone(t, r, r.buf(z), V, nil)
			}
			expectNone(t, r, r.fill(V, -inf), V, nil)
			expectNone(t, r, r.fill(V, 1), V, []int32{})
			expectNone(t, r, r.fill(V, 1), V, []int32{int32(V), -1})
			only := r.fill(V, -inf)
			r.Upload(only.Slice(V-1, 1), []float32{-3})
			for _, p := range []SampleParams{{Temperature: 1, TopP: 1}, {TopP: 1}, {Temperature: 1, TopP: 0.5}, {Temperature: 1, TopP: 1, TopK: 2}} {
				if s := r.Sample(only, []SampleParams{p}, V)[0]; int(s.ID) != V-1 || s.Logprob != 0 || s.Entropy != 0 {
					t.Fatalf("the only possible id is %d, drew %+v with %+v", V-1, s, p)
				}
			}
			huge := r.fill(V, 3e38)
			if s := r.Sample(huge, []SampleParams{{TopP: 1}}, V)[0]; s.ID != 0 {
				t.Fatalf("argmax of equal logits: %+v, want the lowest id", s)
			}
		}
	})
}

func expectNone(t *testing.T, r *rig, z Buffer, V int, allowed []int32) {
	t.Helper()
	for _, p := range []SampleParams{{Temperature: 1, TopP: 1}, {TopP: 1}, {Temperature: 1, TopP: 0.5}, {Temperature: 1, TopP: 1, TopK: 2}} {
		p.Allowed = allowed
		if s := r.Sample(z, []SampleParams{p}, V)[0]; s.ID != -1 || s.Logprob == s.Logprob {
			t.Fatalf("drew %+v with %+v, want ID -1 and a NaN log-prob", s, p)
		}
	}
}

func TestTopLogprobs(t *testing.T) {
	eachISA(t, func(t *testing.T, isa string) {
		for _, V := range oddSizes {
			r := newRig(t, isa, 1)
			z := make([]float32, V)
			for i := range z {
				z[i] = float32(r.rng.IntN(6)) // many ties
			}
			const invTemp = 1.5
			order := make([]int, V)
			for i := range order {
				order[i] = i
			}
			slices.SortStableFunc(order, func(a, b int) int { return int(z[b] - z[a]) })
			k := min(V, 20)
			ids, lp := r.TopLogprobs(r.buf(z), 20, V, invTemp)
			if len(ids) != k || len(lp) != k {
				t.Fatalf("%d ids of a vocabulary of %d", len(ids), V)
			}
			x := f64(z)
			for i := range x {
				x[i] *= invTemp
			}
			for i := range k {
				want, _, _, _ := refHead(x, order[i])
				if int(ids[i]) != order[i] || math.Abs(float64(lp[i])-want) > 2e-6 {
					t.Fatalf("entry %d: id %d log-prob %v, want %d %v", i, ids[i], lp[i], order[i], want)
				}
			}
		}
	})
}
