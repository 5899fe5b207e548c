package chat

import "strings"

type tagKind int

const (
	tagCall tagKind = iota
	tagCallClose
	tagFunction
	tagFunctionClose
	tagParam
	tagParamClose
)

// tag is a marker in text[start:end]; name is that of a function or parameter.
type tag struct {
	kind       tagKind
	name       string
	start, end int
}

// lexer finds the markers of the call format one after the other.
type lexer struct {
	text string
	pos  int
}

// next is the next marker at or behind pos; pos moves behind it.
func (l *lexer) next() (tag, bool) {
	for {
		i := strings.IndexByte(l.text[l.pos:], '<')
		if i < 0 {
			return tag{}, false
		}
		l.pos += i
		if t, ok := l.tagHere(); ok {
			l.pos = t.end
			return t, true
		}
		l.pos++
	}
}

func (l *lexer) tagHere() (tag, bool) {
	rest := l.text[l.pos:]
	for kind, marker := range [...]string{
		tagCall: callOpen, tagCallClose: callClose, tagFunctionClose: functionClose, tagParamClose: paramClose,
		tagFunction: functionOpen, tagParam: paramOpen,
	} {
		if !strings.HasPrefix(rest, marker) {
			continue
		}
		t := tag{kind: tagKind(kind), start: l.pos, end: l.pos + len(marker)}
		if t.kind == tagFunction || t.kind == tagParam {
			return l.named(t)
		}
		return t, true
	}
	return tag{}, false
}

// named completes a marker that carries a name: up to '>' on the same line.
func (l *lexer) named(t tag) (tag, bool) {
	rest := l.text[t.end:]
	rest = rest[:min(len(rest), maxNameBytes+1)]
	end := strings.IndexAny(rest, ">\n<")
	if end < 0 || rest[end] != '>' {
		return tag{}, false
	}
	t.name = trim(rest[:end])
	t.end += end + 1
	return t, t.name != ""
}

func (l *lexer) skipBlank() {
	l.pos = len(l.text) - len(strings.TrimLeftFunc(l.text[l.pos:], isPySpace))
}

// skipTo moves to the next place of marker, or to the end.
func (l *lexer) skipTo(marker string) {
	if i := strings.Index(l.text[l.pos:], marker); i >= 0 {
		l.pos += i
		return
	}
	l.pos = len(l.text)
}

func blank(s string) bool { return trim(s) == "" }
