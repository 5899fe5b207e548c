package harness

import (
	"crypto/sha256"
	"encoding/hex"

	"harness-s/internal/strictyaml"
)

// Hash is the identity of a harness: SHA-256 (hex) of the canonical JSON of everything that reaches the policy or the
// loop, that is all but id, parent and direction. Canonical: keys in the order of the struct, unset fields left out,
// a default spelled out equal to a default left out. Two specs with one hash behave the same.
func (s *Spec) Hash() string {
	c := *s
	if c.Prompt.ToolsBlock == ToolsFull {
		c.Prompt.ToolsBlock = ""
	}
	if c.Memory.Mode == MemoryAll {
		c.Memory.Mode = ""
	}
	j, err := strictyaml.Marshal(&c)
	if err != nil {
		panic("harness: " + err.Error()) // arguments are checked JSON, all else is plain data
	}
	sum := sha256.Sum256(j)
	return hex.EncodeToString(sum[:])
}
