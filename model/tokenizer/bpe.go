package tokenizer

import (
	"math"
	"strings"
	"sync"
)

// merge is one rule: the pair becomes id; the lowest rank goes first.
type merge struct {
	rank, id int32
}

func pairKey(a, b int32) uint64 { return uint64(uint32(a))<<32 | uint64(uint32(b)) }

const (
	scanLimit   = 96      // bytes up to which rescanning a piece beats a heap
	cacheLimit  = 64      // bytes of the longest piece kept in the cache
	cacheShards = 32      // a power of two
	shardLimit  = 1 << 11 // pieces kept a shard
	noRank      = math.MaxInt32
)

// cache keeps the ids of pieces seen. It stops growing when full: text has few frequent pieces, and they come first.
type cache [cacheShards]struct {
	sync.RWMutex
	ids map[string][]int32
}

func shardOf(piece string) int {
	h := uint32(len(piece))
	for i := 0; i < len(piece) && i < 8; i++ {
		h = h*31 + uint32(piece[i])
	}
	return int(h^h>>7) & (cacheShards - 1)
}

// appendPiece appends the ids of one piece of split text.
func (t *Tokenizer) appendPiece(dst []int32, piece string) []int32 {
	if len(piece) > cacheLimit {
		return t.mergePiece(dst, piece)
	}
	s := &t.cache[shardOf(piece)]
	s.RLock()
	ids, ok := s.ids[piece]
	s.RUnlock()
	if ok {
		return append(dst, ids...)
	}
	at := len(dst)
	dst = t.mergePiece(dst, piece)
	s.Lock()
	if len(s.ids) < shardLimit {
		if s.ids == nil {
			s.ids = make(map[string][]int32)
		}
		s.ids[strings.Clone(piece)] = append([]int32(nil), dst[at:]...)
	}
	s.Unlock()
	return dst
}

func (t *Tokenizer) mergePiece(dst []int32, piece string) []int32 {
	if len(piece) <= scanLimit {
		return t.mergeScan(dst, piece)
	}
	return t.mergeHeap(dst, piece)
}

// rule is the merge of two neighbours, with rank noRank where there is none.
func (t *Tokenizer) rule(a, b int32) merge {
	if m, ok := t.merges[pairKey(a, b)]; ok {
		return m
	}
	return merge{rank: noRank}
}

// mergeScan merges a short piece: the leftmost pair of the lowest rank until none is left.
func (t *Tokenizer) mergeScan(dst []int32, piece string) []int32 {
	var idBuf [scanLimit]int32
	var ruleBuf [scanLimit]merge
	ids, rules := idBuf[:len(piece)], ruleBuf[:len(piece)] // rules[i] is for ids[i], ids[i+1]
	for i := range ids {
		ids[i] = t.byteID[piece[i]]
	}
	for i := 0; i+1 < len(ids); i++ {
		rules[i] = t.rule(ids[i], ids[i+1])
	}
	for {
		best := -1
		for i, rank := 0, int32(noRank); i+1 < len(ids); i++ {
			if rules[i].rank < rank {
				best, rank = i, rules[i].rank
			}
		}
		if best < 0 {
			return append(dst, ids...)
		}
		ids[best] = rules[best].id
		copy(ids[best+1:], ids[best+2:])
		copy(rules[best+1:], rules[best+2:])
		ids, rules = ids[:len(ids)-1], rules[:len(rules)-1]
		if best+1 < len(ids) {
			rules[best] = t.rule(ids[best], ids[best+1])
		}
		if best > 0 {
			rules[best-1] = t.rule(ids[best-1], ids[best])
		}
	}
}

// candidate is a pair that may be merged: the symbol at pos with its right neighbour, to id.
type candidate struct {
	rank, pos, id int32
}

func (a candidate) less(b candidate) bool {
	return a.rank < b.rank || a.rank == b.rank && a.pos < b.pos
}

// mergeHeap merges a long piece in O(n log n), with the result of mergeScan. Symbols are a linked list by the
// position of their first byte; a candidate whose pair has changed is dropped when it comes up. A symbol only grows,
// so the same place and the same result id mean the same bytes.
func (t *Tokenizer) mergeHeap(dst []int32, piece string) []int32 {
	n := int32(len(piece))
	ids := make([]int32, n) // -1: swallowed by the symbol to the left
	next, prev := make([]int32, n), make([]int32, n)
	for i := range n {
		ids[i], next[i], prev[i] = t.byteID[piece[i]], i+1, i-1
	}
	var h candidateHeap
	consider := func(i int32) {
		if i < 0 || next[i] >= n {
			return
		}
		if m, ok := t.merges[pairKey(ids[i], ids[next[i]])]; ok {
			h.push(candidate{m.rank, i, m.id})
		}
	}
	for i := range n {
		consider(i)
	}
	for len(h) > 0 {
		c := h.pop()
		i := c.pos
		if ids[i] < 0 || next[i] >= n {
			continue
		}
		j := next[i]
		if m, ok := t.merges[pairKey(ids[i], ids[j])]; !ok || m.id != c.id {
			continue
		}
		ids[i], ids[j] = c.id, -1
		next[i] = next[j]
		if next[i] < n {
			prev[next[i]] = i
		}
		consider(i)
		consider(prev[i])
	}
	for i := int32(0); i < n; i = next[i] {
		dst = append(dst, ids[i])
	}
	return dst
}

// candidateHeap is a binary heap, least first. Written out because container/heap boxes every element.
type candidateHeap []candidate

func (h *candidateHeap) push(c candidate) {
	s := append(*h, c)
	for i := len(s) - 1; i > 0; {
		up := (i - 1) / 2
		if !s[i].less(s[up]) {
			break
		}
		s[i], s[up] = s[up], s[i]
		i = up
	}
	*h = s
}

func (h *candidateHeap) pop() candidate {
	s := *h
	top := s[0]
	s[0] = s[len(s)-1]
	s = s[:len(s)-1]
	for i := 0; ; {
		c := 2*i + 1
		if c >= len(s) {
			break
		}
		if c+1 < len(s) && s[c+1].less(s[c]) {
			c++
		}
		if !s[c].less(s[i]) {
			break
		}
		s[i], s[c] = s[c], s[i]
		i = c
	}
	*h = s
	return top
}
