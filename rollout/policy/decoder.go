// Package policy is the embedded policy server: continuous batching over a decoder, and vLLM's HTTP API as far as
// a trainer uses it.
//
// Start at Engine (scheduling) and Server (HTTP). One goroutine owns the decoder; handlers hand it requests and
// wait. A sampled token depends on weights, context and seed alone, so nothing here may change what is sampled:
// batching, prefix reuse, preemption and pauses only change when it is sampled.
package policy

import (
	"errors"

	"harness-s/kernels"
)

// Sequence is a decoder's handle on one open context.
type Sequence any

// Work is what one sequence does in a step: Tokens are appended to its context and, unless Sample is nil, one
// token is drawn after the last of them.
type Work struct {
	Seq    Sequence
	Tokens []int32
	Sample *kernels.SampleParams
	TopK   int // also report the TopK most likely tokens
}

// Top is one of the most likely tokens with its log-prob.
type Top struct {
	ID      int32
	Logprob float32
}

// Result answers one Work.
type Result struct {
	Sample kernels.Sample
	Top    []Top
}

// ErrFull says that the decoder has no room for a sequence, or for its next tokens. The step that returned it
// changed nothing.
var ErrFull = errors.New("no room in the decoder's cache")

// Decoder extends sequences. It is used by the engine's goroutine alone.
type Decoder interface {
	// Open starts a sequence on prompt; cached tokens of it are already in place (a multiple of kernels.ChunkLen,
	// less than len(prompt)), the rest is given to Step.
	Open(prompt []int32) (seq Sequence, cached int, err error)
	// Step runs one packed batch, prefill and decode mixed.
	Step(work []Work) ([]Result, error)
	Close(seq Sequence)
	// Reset drops every kept prefix. No sequence is open.
	Reset()
	// Used is the share of the cache in use, 0..1.
	Used() float64
}
