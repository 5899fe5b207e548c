package model

import (
	"container/list"
	"fmt"

	"harness-s/kernels"
)

// block is the cache of kernels.ChunkLen consecutive tokens of a sequence: their keys and values in every attention
// layer, and the state of every GDN layer after the last of them. Once full it never changes, and sequences share it.
type block struct {
	mem  kernels.Buffer
	refs int // sequences that hold it
	key  blockKey
	kept bool          // findable by key
	lru  *list.Element // in blockPool.idle when kept and refs is 0
}

// blockKey finds a block: the block before it (nil for the first) and its tokens. As a map key it is hashed for speed
// and compared in full.
type blockKey struct {
	parent *block
	tokens [kernels.ChunkLen]int32
}

// blocksFor is how many blocks hold n tokens.
func blocksFor(n int) int { return (n + kernels.ChunkLen - 1) / kernels.ChunkLen }

// slabBlocks are allocated at a time.
const slabBlocks = 32

// blockPool owns all blocks.
type blockPool struct {
	be                    kernels.InferenceBackend
	max                   int // blocks
	page0, stateS, stateC int // words of one layer's page, S and conv tail
	attn, gdn             int // layers of each kind
	words                 int // of a block

	slabs []kernels.Buffer
	made  int
	free  []*block
	kept  map[blockKey]*block
	idle  *list.List // kept blocks that no sequence holds, least recently used first
}

func (p *blockPool) init(cfg *Config, be kernels.InferenceBackend, maxBlocks int) {
	p.be, p.max = be, maxBlocks
	p.attn, p.gdn = cfg.count(FullAttention), cfg.count(LinearAttention)
	if p.attn > 0 {
		p.page0 = be.KVPage(cfg.Attn())
	}
	if p.gdn > 0 {
		p.stateS = cfg.GDNHv * cfg.Dk * cfg.Dv
		p.stateC = be.ConvState(cfg.GDN().Channels(), cfg.K)
	}
	p.words = p.attn*align(p.page0) + p.gdn*(align(p.stateS)+align(p.stateC))
	p.kept, p.idle = map[blockKey]*block{}, list.New()
}

func (p *blockPool) destroy() {
	for _, s := range p.slabs {
		p.be.Free(s)
	}
	p.slabs, p.free, p.made, p.kept = nil, nil, p.max, nil
	p.idle.Init()
}

// page is where a block keeps the keys and values of the i-th attention layer.
func (p *blockPool) page(b *block, i int) kernels.Buffer {
	return b.mem.Slice(i*align(p.page0), p.page0)
}

// state is where a block keeps S and the conv tail of the i-th GDN layer.
func (p *blockPool) state(b *block, i int) (S, conv kernels.Buffer) {
	at := p.attn*align(p.page0) + i*(align(p.stateS)+align(p.stateC))
	return b.mem.Slice(at, p.stateS), b.mem.Slice(at+align(p.stateS), p.stateC)
}

// match is the longest chain of kept blocks that tokens begin with.
func (p *blockPool) match(tokens []int32) []*block {
	var chain []*block
	var key blockKey
	for len(tokens) >= kernels.ChunkLen {
		copy(key.tokens[:], tokens)
		b := p.kept[key]
		if b == nil {
			break
		}
		chain = append(chain, b)
		key.parent, tokens = b, tokens[kernels.ChunkLen:]
	}
	return chain
}

func (p *blockPool) canTake(n int) bool { return n <= len(p.free)+p.max-p.made+p.idle.Len() }

// take is a block for one sequence: a free one, a new one, or the least recently used kept one. canTake said yes.
func (p *blockPool) take() (*block, error) {
	if len(p.free) == 0 && p.made < p.max {
		if err := p.grow(); err != nil {
			return nil, err
		}
	}
	if len(p.free) == 0 {
		p.evict()
	}
	n := len(p.free) - 1
	b := p.free[n]
	p.free = p.free[:n]
	b.refs = 1
	return b, nil
}

func (p *blockPool) grow() error {
	n := min(slabBlocks, p.max-p.made)
	slab, err := p.be.Alloc("kv cache", n*p.words)
	if err != nil {
		return fmt.Errorf("decoder: allocate cache: %w", err)
	}
	p.slabs = append(p.slabs, slab)
	for i := n - 1; i >= 0; i-- {
		p.free = append(p.free, &block{mem: slab.Slice(i*p.words, p.words)})
	}
	p.made += n
	return nil
}

// evict frees the least recently used kept block. It has no kept child: a child is always released before its parent,
// and a sequence that holds a child holds the parent.
func (p *blockPool) evict() {
	p.forget(p.idle.Front().Value.(*block))
}

// forget makes a block unfindable and, when no sequence holds it, free.
func (p *blockPool) forget(b *block) {
	if b.kept {
		delete(p.kept, b.key)
		b.kept, b.key = false, blockKey{}
	}
	if b.lru != nil {
		p.idle.Remove(b.lru)
		b.lru = nil
	}
	if b.refs == 0 {
		p.free = append(p.free, b)
	}
}

// acquire adds a holder to a kept block.
func (p *blockPool) acquire(b *block) {
	if b.lru != nil {
		p.idle.Remove(b.lru)
		b.lru = nil
	}
	b.refs++
}

// release takes a holder away.
func (p *blockPool) release(b *block) {
	b.refs--
	if b.refs > 0 {
		return
	}
	if b.kept {
		b.lru = p.idle.PushBack(b)
	} else {
		p.forget(b)
	}
}

// keep makes a full block findable. When another sequence has kept the same tokens already, that block is returned, held,
// in place of b, whose content is the same bit for bit; b is released.
func (p *blockPool) keep(b, parent *block, tokens []int32) *block {
	key := blockKey{parent: parent}
	copy(key.tokens[:], tokens)
	if twin := p.kept[key]; twin != nil {
		p.acquire(twin)
		p.release(b)
		return twin
	}
	b.key, b.kept = key, true
	p.kept[key] = b
	return b
}

// reset forgets every kept block.
func (p *blockPool) reset() {
	for _, b := range p.kept {
		p.forget(b)
	}
}
