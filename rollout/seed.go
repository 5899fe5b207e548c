package rollout

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
)

// Seed is the sampling seed of one turn: a hash of where the turn stands in the run. The harness is not part of it,
// so that attempts under two harnesses are paired; rescue attempts count on from n. It is never negative.
//
// It is the top 63 bits of the first 8 bytes (little endian) of SHA-256 over
// "harness-s seed 1\0", run, len(phase), phase, step, len(task), task, attempt, turn, numbers as little-endian int64.
func Seed(run int64, phase string, step int, task string, attempt, turn int) int64 {
	b := make([]byte, 0, 96+len(phase)+len(task))
	b = append(b, "harness-s seed 1\x00"...)
	num := func(v int64) { b = binary.LittleEndian.AppendUint64(b, uint64(v)) }
	text := func(s string) { num(int64(len(s))); b = append(b, s...) }
	num(run)
	text(phase)
	num(int64(step))
	text(task)
	num(int64(attempt))
	num(int64(turn))
	sum := sha256.Sum256(b)
	return int64(binary.LittleEndian.Uint64(sum[:8]) >> 1)
}

// ID names a rollout by where it stands in the run; a repeated run makes the same ids.
func ID(phase string, step int, task, harness string, attempt int) string {
	return fmt.Sprintf("%s-%d-%s-%s-%d", phase, step, task, harness, attempt)
}

// GroupID names the rollouts of one task in one step.
func GroupID(step int, task string) string { return fmt.Sprintf("%d-%s", step, task) }
