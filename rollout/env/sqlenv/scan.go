package sqlenv

import (
	"errors"
	"regexp"
	"strings"
	"unicode/utf8"
)

// A token of a statement. Only what separates statements and names matters here; SQLite does the parsing.
type token struct {
	kind tokenKind
	text string
}

type tokenKind byte

const (
	tokBlank    tokenKind = iota // blanks and comments
	tokText                      // '...'
	tokQuoted                    // "..."
	tokTick                      // `...` or [...]
	tokWord                      // a name, keyword or number
	tokPunct                     // one character
	tokSemi                      // ;
	tokUnclosed                  // a literal or comment that never ends
)

// scan cuts a statement into tokens whose texts joined give the input. mysql turns on backslash escapes, # comments
// and the rule that -- starts a comment only before a blank.
func scan(sql string, mysql bool) []token {
	var out []token
	for i := 0; i < len(sql); {
		kind, n := next(sql[i:], mysql)
		out = append(out, token{kind, sql[i : i+n]})
		i += n
	}
	return out
}

// next reads one token at the start of s, which is not empty.
func next(s string, mysql bool) (tokenKind, int) {
	c := s[0]
	switch {
	case isBlank(c):
		n := 1
		for n < len(s) && isBlank(s[n]) {
			n++
		}
		return tokBlank, n
	case c == '-' && strings.HasPrefix(s, "--") && (!mysql || len(s) == 2 || isBlank(s[2])), c == '#' && mysql:
		if n := strings.IndexByte(s, '\n'); n >= 0 {
			return tokBlank, n + 1
		}
		return tokBlank, len(s)
	case strings.HasPrefix(s, "/*"):
		if n := strings.Index(s[2:], "*/"); n >= 0 {
			return tokBlank, n + 4
		}
		return tokUnclosed, len(s)
	case c == '\'':
		return quoted(s, c, tokText, mysql)
	case c == '"':
		return quoted(s, c, tokQuoted, mysql)
	case c == '`':
		return quoted(s, c, tokTick, false)
	case c == '[' && !mysql:
		if n := strings.IndexByte(s, ']'); n >= 0 {
			return tokTick, n + 1
		}
		return tokUnclosed, len(s)
	case c == ';':
		return tokSemi, 1
	case isWord(c):
		n := 1
		for n < len(s) && isWord(s[n]) {
			n++
		}
		return tokWord, n
	}
	return tokPunct, 1
}

func quoted(s string, q byte, kind tokenKind, escapes bool) (tokenKind, int) {
	for i := 1; i < len(s); i++ {
		switch {
		case escapes && s[i] == '\\':
			i++
		case s[i] != q:
		case i+1 < len(s) && s[i+1] == q:
			i++
		default:
			return kind, i + 1
		}
	}
	return tokUnclosed, len(s)
}

func isBlank(c byte) bool { return strings.IndexByte(" \t\n\r\f", c) >= 0 }

func isWord(c byte) bool {
	return c == '_' || c == '$' || c >= '0' && c <= '9' || (c|0x20) >= 'a' && (c|0x20) <= 'z' || c >= utf8.RuneSelf
}

var (
	errEmpty    = errors.New("the statement is empty")
	errSecond   = errors.New("only one SQL statement is allowed in a call")
	errUnclosed = errors.New("a quote or comment is not closed")
	errNUL      = errors.New("the statement has a NUL character")
)

// single returns the tokens of the one statement in sql without blanks and semicolons around it.
func single(sql string, mysql bool) ([]token, error) {
	if strings.IndexByte(sql, 0) >= 0 {
		return nil, errNUL
	}
	toks := scan(strings.ToValidUTF8(sql, "\uFFFD"), mysql)
	var out []token
	ended := false
	for _, t := range toks {
		switch {
		case t.kind == tokUnclosed:
			return nil, errUnclosed
		case t.kind == tokBlank && (ended || len(out) == 0):
		case t.kind == tokSemi:
			ended = ended || len(out) > 0
		case ended:
			return nil, errSecond
		default:
			out = append(out, t)
		}
	}
	for len(out) > 0 && out[len(out)-1].kind == tokBlank {
		out = out[:len(out)-1]
	}
	if len(out) == 0 {
		return nil, errEmpty
	}
	return out, nil
}

// prepare turns what the policy wrote into one SQLite statement.
func prepare(sql string, mysql bool) (stmt string, toks []token, err error) {
	if toks, err = single(sql, mysql); err != nil {
		return "", nil, err
	}
	var b strings.Builder
	for _, t := range toks {
		if mysql {
			t.text = fromMySQL(t)
		}
		b.WriteString(t.text)
	}
	if !mysql {
		return b.String(), toks, nil
	}
	// What SQLite will see is scanned again by SQLite's rules: the two readings must agree on where it ends.
	again, err := single(b.String(), false)
	if err != nil {
		return "", nil, err
	}
	return b.String(), again, nil
}

// number tells 12, 1.5e3 and 0x1F from a MySQL name that starts with a digit.
var number = regexp.MustCompile(`^([0-9]+([eE][0-9]*)?|0[xX][0-9a-fA-F]+)$`)

// fromMySQL writes a token of MySQL as SQLite reads it.
func fromMySQL(t token) string {
	switch t.kind {
	case tokBlank:
		return " "
	case tokText, tokQuoted:
		return QuoteText(unescape(t.text[1:len(t.text)-1], t.text[0]))
	case tokWord:
		if c := t.text[0]; c >= '0' && c <= '9' && !number.MatchString(t.text) {
			return QuoteName(t.text)
		}
	}
	return t.text
}

// unescape reads the inside of a MySQL text literal with quote q.
func unescape(s string, q byte) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		c := s[i]
		switch {
		case c == q: // doubled
			i++
		case c == '\\' && i+1 < len(s):
			i++
			c = s[i]
			switch c {
			case '%', '_':
				b.WriteByte('\\')
			case 'n':
				c = '\n'
			case 't':
				c = '\t'
			case 'r':
				c = '\r'
			case 'b':
				c = '\b'
			case 'Z':
				c = 26
			case '0':
				b.WriteString("\uFFFD") // a NUL, which no text here may hold
				continue
			}
		}
		b.WriteByte(c)
	}
	return b.String()
}

// words are the tokens that are not blanks.
func words(toks []token) []token {
	out := make([]token, 0, len(toks))
	for _, t := range toks {
		if t.kind != tokBlank {
			out = append(out, t)
		}
	}
	return out
}

// name is the identifier a token stands for, "" if it is none.
func (t token) name() string {
	switch t.kind {
	case tokWord:
		return t.text
	case tokText, tokQuoted, tokTick:
		q := t.text[len(t.text)-1]
		in := t.text[1 : len(t.text)-1]
		if q == ']' {
			return in
		}
		return strings.ReplaceAll(in, string([]byte{q, q}), string(q))
	}
	return ""
}

// is compares a word with a keyword in capitals.
func (t token) is(keyword string) bool {
	return t.kind == tokWord && strings.EqualFold(t.text, keyword)
}
