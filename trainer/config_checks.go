package trainer

import (
	"fmt"
	"math"
	"slices"
	"strings"
)

// intBounds are the whole numbers that a key may hold.
type intBounds struct {
	key       string
	n, lo, hi int
}

// checkInts is an error for the first key out of bounds. section stands before each key: "" or "router.".
func checkInts(section string, bounds []intBounds) error {
	for _, b := range bounds {
		if b.n < b.lo || b.n > b.hi {
			return fmt.Errorf("%s%s: %d is outside %d..%d", section, b.key, b.n, b.lo, b.hi)
		}
	}
	return nil
}

// floatBounds are the numbers that a key may hold; not a number is outside.
type floatBounds struct {
	key       string
	x, lo, hi float64
}

func checkFloats(section string, bounds []floatBounds) error {
	for _, b := range bounds {
		if math.IsNaN(b.x) || b.x < b.lo || b.x > b.hi {
			return fmt.Errorf("%s%s: %g is outside %g..%g", section, b.key, b.x, b.lo, b.hi)
		}
	}
	return nil
}

// choice is a key that names one of several things.
type choice struct {
	key, value string
	allowed    []string
}

func checkChoices(section string, choices []choice) error {
	for _, c := range choices {
		if !slices.Contains(c.allowed, c.value) {
			return fmt.Errorf("%s%s: %q: want one of %s", section, c.key, c.value, strings.Join(c.allowed, ", "))
		}
	}
	return nil
}

// llmBounds are those of the keys that every llm section has.
func llmBounds(timeoutS, retries, maxTokens, concurrency int) []intBounds {
	return []intBounds{
		{"llm.timeout_s", timeoutS, 1, 1 << 20},
		{"llm.retries", retries, 0, 100},
		{"llm.max_tokens", maxTokens, 1, 1 << 20},
		{"llm.concurrency", concurrency, 1, 1024},
	}
}

// llmTemperature are the bounds of an llm section's temperature.
func llmTemperature(x float64) []floatBounds { return []floatBounds{{"llm.temperature", x, 0, 2}} }
