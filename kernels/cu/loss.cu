// loss.cu: the policy's loss and its derivative by each token's log-prob, for the objectives that trainer/loss builds in
// (formulas and papers there). All in fp32. Masked tokens are selected away before any arithmetic: whatever they hold, their
// outputs are exactly 0. Selections are written as comparisons, so that NaN of a policy token comes through and is seen.
#include "hs.cuh"

enum { CLIPPED = 0, SEQUENCE = 1, CAPPED = 2 }; // PolicyKind of policy.go

struct LossArgs {
    const float *logp;                // [T]
    const float *old, *sampler;       // [T]; old null: logp itself; sampler is read when cap > 0 only
    const float *advantage, *weight;  // [T]
    const i32 *mask;                  // [T]
    const i32 *index;                 // loss_token: the n tokens to go through, null: 0 to n-1
    const i32 *rollout, *start, *end; // loss_sequence: rollout b has rows rollout[b] to rollout[b+1], tokens start to end
    float *coef, *ratio, *loss;       // [T]
    i32 *clip;                        // [T]: 1 held back by the lower bound, 2 by the upper one, else 0
    float *list;                      // loss_token: coef in the order of index; may be null
    i32 n, kind;
    float low, high, cap;             // 1-eta_minus, 1+eta_plus, sampler_cap
};

constexpr float MAX_LOG_RATIO = 20; // as in trainer/loss: past every clip, and exp stays finite

// ratio_ is e^d, and whether it still depends on d.
HD float ratio_(float d, bool &moves) {
    moves = !(d > MAX_LOG_RATIO || d < -MAX_LOG_RATIO);
    return exp_(moves ? d : d > 0 ? MAX_LOG_RATIO : -MAX_LOG_RATIO);
}

HD float old_(const LossArgs &a, i64 t) { return a.old ? a.old[t] : a.logp[t]; }

// weight_ is a token's weight times min(e^(old-sampler), cap).
HD float weight_(const LossArgs &a, i64 t) {
    if (!(a.cap > 0)) return a.weight[t];
    bool moves;
    float r = ratio_(old_(a, t) - a.sampler[t], moves);
    return a.weight[t] * (r > a.cap ? a.cap : r);
}

// Term is min(rho·A, clip(rho)·A) and its derivative by log rho. At a tie the unclipped branch counts.
struct Term {
    float value, slope;
};

HD Term clipped(const LossArgs &a, float rho, float advantage) {
    if (advantage == 0) return {0, 0};
    float free = rho * advantage;
    float held = (rho < a.low ? a.low : rho > a.high ? a.high : rho) * advantage;
    return free <= held ? Term{free, free} : Term{held, 0};
}

HD i32 side(const LossArgs &a, float rho, float advantage) {
    return advantage < 0 && rho < a.low ? 1 : advantage > 0 && rho > a.high ? 2 : 0;
}

HD void store(const LossArgs &a, i64 t, float coef, float ratio, float loss, i32 clip) {
    a.coef[t] = coef, a.ratio[t] = ratio, a.loss[t] = loss, a.clip[t] = clip;
}

// token_loss: coef and loss of a policy token.
HD Term token_loss(const LossArgs &a, i64 t, float rho, bool moves) {
    float advantage = a.advantage[t], w = weight_(a, t);
    if (a.kind == CAPPED) {
        if (advantage == 0) return {0, 0};
        float coef = -w * (rho > a.high ? a.high : rho) * advantage;
        return {coef * a.logp[t], coef};
    }
    Term term = clipped(a, rho, advantage);
    return {-w * term.value, moves ? -w * term.slope : 0};
}

KERNEL(loss_token, LossArgs, 256) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= a.n) return;
    i64 t = a.index ? a.index[i] : i;
    float rho = 0;
    Term loss = {0, 0};
    i32 clip = 0;
    if (a.mask[t]) {
        bool moves;
        rho = ratio_(a.logp[t] - old_(a, t), moves);
        loss = token_loss(a, t, rho, moves);
        clip = side(a, rho, a.advantage[t]);
    }
    store(a, t, loss.slope, rho, loss.value, clip);
    if (a.list) a.list[i] = loss.slope;
}

// Sequence is a rollout's policy tokens together.
struct Sequence {
    float log_ratio, weight, tokens; // sums
    float advantage;                 // the greatest; they all have the same
};

HD Sequence sequence(const LossArgs &a, float *red) {
    Sequence s = {0, 0, 0, bits_to_float(0xff800000u)};
    for (int r = a.rollout[blockIdx.x]; r < a.rollout[blockIdx.x + 1]; r++)
        for (int t = a.start[r] + threadIdx.x; t < a.end[r]; t += blockDim.x)
            if (a.mask[t]) {
                s.log_ratio += a.logp[t] - old_(a, t);
                s.weight += weight_(a, t);
                s.tokens += 1;
                s.advantage = a.advantage[t];
            }
    return {block_sum(s.log_ratio, red), block_sum(s.weight, red), block_sum(s.tokens, red), block_max(s.advantage, red)};
}

// loss_sequence: a block a rollout. Its tokens share the ratio e^(mean of logp - old) and the weight of them all. Thread s sums
// every blockDim-th token of each row, so that the order is the rollout's own.
KERNEL(loss_sequence, LossArgs, 256) {
    SHARED_ARRAY(float, red, 32);
    Sequence s = sequence(a, red);
    bool moves = false;
    float share = s.tokens > 0 ? 1.0f / s.tokens : 0, rho = s.tokens > 0 ? ratio_(s.log_ratio * share, moves) : 0;
    Term term = clipped(a, rho, s.advantage);
    float coef = moves ? -s.weight * term.slope * share : 0;
    i32 clip = side(a, rho, s.advantage);
    for (int r = a.rollout[blockIdx.x]; r < a.rollout[blockIdx.x + 1]; r++)
        for (int t = a.start[r] + threadIdx.x; t < a.end[r]; t += blockDim.x)
            if (a.mask[t]) store(a, t, coef, rho, -weight_(a, t) * term.value, clip);
            else store(a, t, 0, 0, 0, 0);
}
