package tokenizer

// Classes of a code point, as bits.
const (
	letter = 1 << iota
	mark
	number
	space
	plainMark
)

// classes is indexed by code point. Planes 2 to 16 hold long ranges only and are looked up by classOf's search.
var classes = buildClasses()

// classPlanes is how many code points the direct table holds: planes 0 and 1.
const classPlanes = 0x20000

func buildClasses() *[classPlanes]uint8 {
	var t [classPlanes]uint8
	set := func(ranges []rune, bit uint8) {
		for i := 0; i < len(ranges); i += 2 {
			for r := ranges[i]; r <= ranges[i+1] && r < classPlanes; r++ {
				t[r] |= bit
			}
		}
	}
	set(letterRanges, letter)
	set(markRanges, mark)
	set(numberRanges, number)
	set(spaceRanges, space)
	set(plainMarkRanges, plainMark)
	return &t
}

// classOf is the set of classes of r.
func classOf(r rune) uint8 {
	if uint32(r) < classPlanes {
		return classes[r]
	}
	switch {
	case inRanges(letterRanges, r):
		return letter
	case inRanges(markRanges, r):
		return mark
	}
	return 0 // no number or space lies above plane 1 (a test holds the tables to it)
}

// inRanges searches sorted pairs of first, last.
func inRanges(ranges []rune, r rune) bool {
	lo, hi := 0, len(ranges)/2
	for lo < hi {
		m := (lo + hi) / 2
		switch {
		case r < ranges[2*m]:
			hi = m
		case r > ranges[2*m+1]:
			lo = m + 1
		default:
			return true
		}
	}
	return false
}
