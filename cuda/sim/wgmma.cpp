//go:build ignore

// wgmma.cpp: products of a warpgroup, each warp its 16 rows, as the PTX manual lays out registers, descriptors and shared
// memory ("Asynchronous warpgroup level matrix instructions"). A product reads shared memory at a random moment between
// its issue and the wait that covers it; its registers hold poison meanwhile.
#include "checks.h"
#include <algorithm>

namespace hs_sim {

unsigned swizzled(unsigned address, unsigned span);

namespace {

constexpr uint32_t POISON = 0xffbfffff; // a signalling NaN: arithmetic changes it

struct Operands {
    float *d;
    unsigned n;
    bool add;
    const unsigned *a;
    uint64_t desc_a, desc_b;
    bool trans_a, trans_b;
};

// Pieces (of 8 values) in a row of each swizzle, by the descriptor's number.
constexpr unsigned PIECES[] = {1, 8, 4, 2};

// place is the shared address of value (i, k) of an operand, i along M or N; along is true where rows lie along M or N.
unsigned place(uint64_t desc, unsigned i, unsigned k, bool along) {
    unsigned start = (desc & 0x3fff) << 4, lead = (desc >> 16 & 0x3fff) << 4, stride = (desc >> 32 & 0x3fff) << 4;
    unsigned pieces = PIECES[desc >> 62], at;
    if (!along) at = i % 8 * 16 * pieces + i / 8 * stride + k / 8 * (pieces == 1 ? lead : 16) + k % 8 * 2;
    else if (pieces == 1) at = k % 8 * 16 + k / 8 * lead + i / 8 * stride + i % 8 * 2;
    else at = k % 8 * 16 * pieces + k / 8 * stride + i / (8 * pieces) * lead + i % (8 * pieces) * 2;
    return swizzled(start + at, pieces == 1 ? 0 : 16 * pieces);
}

const unsigned short *value_at(Block &b, uint64_t desc, unsigned i, unsigned k, bool along) {
    const void *p = b.shared_pointer(place(desc, i, k, along), 2);
    if (!p) b.fail("wgmma: its descriptor reaches outside the block's shared memory");
    return static_cast<const unsigned short *>(p);
}

float wide(unsigned v) { return __builtin_bit_cast(float, v << 16); }

unsigned first_row(Block &b, Warp &w) { return (&w - b.warps) % 4 * 16; }

void multiply(Block &b, Warp &w, Wgmma &p) {
    float a[16][16];
    for (unsigned i = 0; i < 16; i++)
        for (unsigned k = 0; k < 16; k++) {
            unsigned held = p.a[i % 8 * 4 + k % 8 / 2][i / 8 + k / 8 * 2] >> (k % 2 * 16) & 0xffff;
            a[i][k] = wide(p.a_in_registers ? held : *value_at(b, p.desc_a, first_row(b, w) + i, k, p.trans_a));
        }
    for (unsigned j = 0; j < p.d->n; j++) {
        float column[16];
        for (unsigned k = 0; k < 16; k++) column[k] = wide(*value_at(b, p.desc_b, j, k, p.trans_b));
        for (unsigned i = 0; i < 16; i++) {
            float &d = p.d->value[(i % 8 * 4 + j % 8 / 2) * (p.d->n / 2) + j / 8 * 4 + i / 8 * 2 + j % 2];
            if (!p.add) d = 0;
            for (unsigned k = 0; k < 16; k++) d += a[i][k] * column[k];
        }
    }
    p.done = true;
}

void multiply_all(Block &b, Warp &w, WgmmaQueue &q, uint64_t before_group) {
    for (Wgmma &p : q.products)
        if (!p.done && p.group < before_group) multiply(b, w, p);
}

WgmmaQueue &queue(Block &b, Warp &w) { return b.async.wgmma[&w - b.warps]; }

void whole_warpgroup(Block &b, Warp &w) {
    unsigned first = (&w - b.warps) / 4 * 4;
    for (unsigned i = first; i < first + 4; i++)
        if (i >= b.warp_count || b.warps[i].exists != ~0u) b.fail("wgmma needs a whole warpgroup; the block has %u threads", b.threads);
}

// accumulator gives the one under way in the same registers, or takes the registers and poisons them.
std::shared_ptr<Accumulator> accumulator(Block &b, Warp &w, WgmmaQueue &q, const Operands *o[LANES]) {
    for (Wgmma &p : q.products)
        if (p.d->registers[0] == o[0]->d && p.d->n == o[0]->n) return p.d->uses++, p.d;
    if (!q.fenced) b.fail("wgmma: no wgmma_fence since the registers were last free");
    auto d = std::make_shared<Accumulator>();
    d->n = o[0]->n, d->uses = 1;
    for (unsigned l = 0; l < LANES; l++) {
        d->registers[l] = o[l]->d;
        d->value.insert(d->value.end(), o[l]->d, o[l]->d + d->n / 2);
        std::fill_n(reinterpret_cast<uint32_t *>(o[l]->d), d->n / 2, POISON);
    }
    (void)w;
    return d;
}

// note_reads tells the checked build what a product reads: 8 values along a row at a time. It does so when the product
// starts and when it is waited for.
void note_reads(Block &b, Warp &w, const Wgmma &p) {
    if (!CHECKED) return;
    auto note = [&](uint64_t desc, unsigned from, unsigned count, bool along) {
        for (unsigned i = from; i < from + count; i += along ? 8 : 1)
            for (unsigned k = 0; k < 16; k += along ? 1 : 8) check_async_access(value_at(b, desc, i, k, along), 16, false, p.pc);
    };
    if (!p.a_in_registers) note(p.desc_a, first_row(b, w), 16, p.trans_a);
    note(p.desc_b, 0, p.d->n, p.trans_b);
}

void run_wgmma(Block &b, Warp &w, unsigned) {
    whole_warpgroup(b, w);
    WgmmaQueue &q = queue(b, w);
    const Operands *o[LANES];
    for (unsigned l = 0; l < LANES; l++) {
        o[l] = static_cast<const Operands *>(w.fiber[l].operands);
        if (o[l]->desc_a != o[0]->desc_a || o[l]->desc_b != o[0]->desc_b) b.fail("wgmma: lanes of a warp give different descriptors");
    }
    if ((o[0]->desc_b | o[0]->desc_a) >> 49 & 7) b.fail("wgmma: matrix base offsets are not modelled");
    Wgmma p = {accumulator(b, w, q, o), o[0]->add, o[0]->a != nullptr, o[0]->trans_a, o[0]->trans_b, {}, {}, w.fiber[0].pc,
               o[0]->desc_a, o[0]->desc_b, q.groups, false};
    for (unsigned l = 0; l < LANES && o[l]->a; l++) std::copy_n(o[l]->a, 4, p.a[l]), p.registers[l] = o[l]->a;
    note_reads(b, w, p);
    q.products.push_back(p);
    if (b.seed && b.below(4) == 0) multiply_all(b, w, q, q.groups + 1);
}

void run_fence(Block &b, Warp &w, unsigned) { queue(b, w).fenced = true; }
void run_commit(Block &b, Warp &w, unsigned) { queue(b, w).groups++; }

// give_back ends an accumulator's last product.
void give_back(Block &b, Accumulator &d) {
    for (unsigned l = 0; l < LANES; l++)
        for (unsigned i = 0; i < d.n / 2; i++) {
            uint32_t now;
            memcpy(&now, d.registers[l] + i, 4);
            if (now != POISON) b.fail("wgmma: lane %u wrote a register of the result while the product was under way", l);
            d.registers[l][i] = d.value[l * (d.n / 2) + i];
        }
}

// check_operand: the registers of A belong to the product until it is waited for.
void check_operand(Block &b, const Wgmma &p) {
    for (unsigned l = 0; l < LANES && p.a_in_registers; l++)
        if (memcmp(p.registers[l], p.a[l], sizeof p.a[l])) b.fail("wgmma: lane %u wrote a register of A while the product was under way", l);
}

void run_wait(Block &b, Warp &w, unsigned) {
    WgmmaQueue &q = queue(b, w);
    unsigned left = *static_cast<unsigned *>(w.fiber[0].operands);
    uint64_t before = q.groups > left ? q.groups - left : 0;
    multiply_all(b, w, q, before);
    for (Wgmma &p : q.products)
        if (p.group < before) note_reads(b, w, p), check_operand(b, p);
    for (Wgmma &p : q.products)
        if (p.group < before && --p.d->uses == 0) give_back(b, *p.d), q.fenced = false;
    q.products.erase(std::remove_if(q.products.begin(), q.products.end(), [&](const Wgmma &p) { return p.group < before; }), q.products.end());
}

} // namespace

void wgmma_fence(Site site) {
    static const Collective c = {"wgmma_fence", run_fence};
    running->collective(&c, ~0u, nullptr, site);
}

void wgmma_commit(Site site) {
    static const Collective c = {"wgmma_commit", run_commit};
    running->collective(&c, ~0u, nullptr, site);
}

void wgmma_wait(unsigned groups, Site site) {
    static const Collective c = {"wgmma_wait", run_wait};
    running->collective(&c, ~0u, &groups, site);
}

void wgmma(float *d, unsigned n, bool add, const unsigned *a, uint64_t desc_a, uint64_t desc_b, bool trans_a, bool trans_b, Site site) {
    static const Collective c = {"wgmma", run_wgmma};
    Operands o = {d, n, add, a, desc_a, desc_b, trans_a, trans_b};
    running->current()->pc = __builtin_return_address(0);
    running->collective(&c, ~0u, &o, site);
}

} // namespace hs_sim
