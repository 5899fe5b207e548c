// Package kernels is the numerics of harness-s: one backend interface and its implementations.
//
// Axis letters, used in every shape comment of this project:
//
//	T  tokens of a packed batch (all rows one after another, no padding)
//	H  hidden size            I  MLP width            V  vocabulary
//	Hq query heads            Hk key (or kv) heads    Hv value heads
//	D  head dim (attention)   Dk, Dv key and value dim (GDN)    K conv width
//	C  chunk of the gated delta rule, 64 tokens; also the token count of one KV page
//
// Rules that every implementation keeps, because callers rely on them:
//
//   - A row's result depends on that row alone: not on its batch, its neighbours, the number of
//     threads or how its tokens were split into calls. Every output element is reduced in one
//     fixed order (ascending over the reduced axis, fused-multiply-add chains over runs whose length the shape
//     alone decides).
//   - Backward functions say for each output whether they write (=) or add (+=).
//   - Weight gradients are summed in fp32, in an order that does not depend on the thread count.
//   - Shapes are checked on entry; a wrong shape is a bug of the caller and panics.
//   - Operating errors (device lost, out of memory) are sticky and reported by Sync.
//
// The CPU backend is C11 through cgo. From a Go method to the arithmetic: cpu_*.go checks the shapes and calls a function
// of cpu.h or mixer.h; that one (dense.c, head.c, ...) cuts the op into items and hands a worker to the thread pool
// (pool.c); the workers are in *.inc.h, written once over vec.h and compiled for AVX-512, AVX2 and any machine (isa_*.c).
// HARNESS_S_ISA=avx512|avx2|base overrides the choice made at run time.
//
// The C code under sanitizers (go test -race does not see C):
//
//	go test -asan ./kernels
//	CGO_CFLAGS="-g -fsanitize=thread" CGO_LDFLAGS=-fsanitize=thread go test ./kernels
//	CGO_CFLAGS="-g -fsanitize=undefined -fno-sanitize-recover=all" CGO_LDFLAGS=-fsanitize=undefined go test ./kernels
package kernels
