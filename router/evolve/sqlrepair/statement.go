package sqlrepair

import (
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// statement is what a policy sent to execute_sql, cut into tokens. Nothing here needs a full parser: the causes look at the
// verb, at comparisons and at names that stand beside each other.
type statement struct {
	text   string
	tokens []string
}

const maxStatement = 8 << 10 // longer ones are garbage; what is beyond is not looked at

var sqlToken = regexp.MustCompile("(?s)'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|`(?:[^`]|``)*`|[\\p{L}\\p{N}_$]+|\\S")

func parseStatement(sql string) statement {
	if len(sql) > maxStatement {
		sql = sql[:maxStatement]
	}
	return statement{sql, sqlToken.FindAllString(sql, -1)}
}

// keywords may follow a name without being part of it.
var keywords = strings.Fields(`all and as asc between by case collate cross desc distinct else end except exists from full group having in inner
	intersect into is isnull join left like limit natural not notnull null offset on or order outer right select set then union using values when where`)

func isName(token string) bool {
	r := token[0]
	return r == '_' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= 0x80
}

func isKeyword(token string) bool { return slices.Contains(keywords, strings.ToLower(token)) }

// verb is the first word in lower case.
func (s statement) verb() string {
	if len(s.tokens) == 0 {
		return ""
	}
	return strings.ToLower(s.tokens[0])
}

// catalogue says that the statement looks the schema up.
func (s statement) catalogue() bool {
	switch s.verb() {
	case "describe", "desc", "show":
		return true
	case "explain":
		return len(s.tokens) == 2
	}
	for _, t := range s.tokens {
		if t = strings.ToLower(t); t == "sqlite_schema" || t == "sqlite_master" || strings.HasPrefix(t, "pragma_table_") {
			return true
		}
	}
	return false
}

// change says that the statement changes rows.
func (s statement) change() bool {
	return slices.Contains([]string{"insert", "update", "delete", "replace"}, s.verb())
}

// find is the place of a word behind token i, or -1.
func (s statement) find(word string, i int) int {
	for ; i < len(s.tokens); i++ {
		if strings.EqualFold(s.tokens[i], word) {
			return i
		}
	}
	return -1
}

// comparesExactly says that a condition compares a bare name with a text: no lower(), trim() or LIKE around it.
func (s statement) comparesExactly() bool {
	i := s.find("where", 0)
	if i < 0 {
		return false
	}
	for i++; i+2 < len(s.tokens); i++ {
		name, op, text := s.tokens[i], s.tokens[i+1], s.tokens[i+2]
		if (isName(name) && !isKeyword(name) || name[0] == '`') && op == "=" && (text[0] == '\'' || text[0] == '"') {
			return true
		}
	}
	return false
}

// aggregates says that the database counted, instead of listing what is to be counted.
func (s statement) aggregates() bool {
	for i := 0; i+1 < len(s.tokens); i++ {
		switch strings.ToLower(s.tokens[i]) {
		case "count", "sum", "total", "avg", "min", "max":
			if s.tokens[i+1] == "(" {
				return true
			}
		}
	}
	return false
}

// page is the number after LIMIT where rows come page by page, else 0. The first of an ordered list is no page.
func (s statement) page() int {
	if s.find("order", 0) >= 0 {
		return 0
	}
	i := s.find("limit", 0)
	if i < 0 || i+1 >= len(s.tokens) {
		return 0
	}
	n, err := strconv.Atoi(s.tokens[i+1])
	if err != nil {
		return 0
	}
	return n
}

// splitName says that a name which the database did not find is the first half of two words that stand beside each other,
// as in FROM old ravis: the pair was meant as one name. An alias, which is used with a dot elsewhere, is no second half.
func (s statement) splitName(missing string) bool {
	for i := 0; i+1 < len(s.tokens); i++ {
		next := s.tokens[i+1]
		if s.tokens[i] == missing && isName(next) && !isKeyword(next) && !strings.Contains(s.text, next+".") {
			return true
		}
	}
	return false
}
