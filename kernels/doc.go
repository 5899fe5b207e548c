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
package kernels
