// Package strictyaml decodes one YAML document into a Go struct and reports every problem with its place.
//
// It is stricter than a YAML library: an unknown or repeated key, a 1.5 where an integer belongs, a bare number
// where text belongs, anchors, aliases, tags and a second document are all errors. Fields carry the tag
// `yaml:"name"`. Values already in the struct stay where the document does not mention them, so defaults are set
// by filling the struct first. Supported: struct, pointer, slice, string, bool, int kinds, float64, and []Field.
package strictyaml

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"reflect"
	"regexp"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"
)

// MaxDepth bounds the nesting of a document.
const MaxDepth = 32

const (
	maxProblems = 20 // reported of one document
	// maxOpen bounds the brackets open at once, those in text included. The parser's time grows with the square of it.
	maxOpen = 1000
)

// Problem is one fault and its place. Line and Col count from 1; 0 means the whole file.
type Problem struct {
	File string
	Line int
	Col  int
	Text string
}

// Error is "file:line:col: text".
func (p Problem) Error() string {
	switch {
	case p.Line == 0:
		return fmt.Sprintf("%s: %s", p.File, p.Text)
	case p.Col == 0:
		return fmt.Sprintf("%s:%d: %s", p.File, p.Line, p.Text)
	}
	return fmt.Sprintf("%s:%d:%d: %s", p.File, p.Line, p.Col, p.Text)
}

// Field is one entry of a mapping whose keys the struct does not know beforehand; order is kept, Value is JSON.
type Field struct {
	Key   string
	Value json.RawMessage
}

// Doc remembers where each value of a decoded document stood.
type Doc struct {
	File string
	at   map[string]token.Position
}

// Problem makes a problem placed at path ("prompt.few_shot[1].content"), or at the nearest enclosing value that the
// document has.
func (d *Doc) Problem(path, format string, args ...any) Problem {
	p := Problem{File: d.File, Text: fmt.Sprintf(format, args...)}
	for {
		if pos, ok := d.at[path]; ok {
			p.Line, p.Col = pos.Line, pos.Column
			return p
		}
		cut := strings.LastIndexAny(path, ".[")
		if cut < 0 {
			return p
		}
		path = path[:cut]
	}
}

// Decode reads data (named file in messages) into the struct that into points to. It returns every problem found;
// the struct is only to be used when there is none.
func Decode(file string, data []byte, into any) (*Doc, []Problem) {
	d := &decoder{doc: &Doc{File: file, at: map[string]token.Position{}}}
	body, problem := parse(file, data)
	if problem != nil {
		return d.doc, []Problem{*problem}
	}
	if body != nil {
		d.value(body, reflect.ValueOf(into).Elem(), "", 0)
	}
	if more := len(d.problems) - maxProblems; more > 0 {
		d.problems = append(d.problems[:maxProblems], Problem{File: file, Text: fmt.Sprintf("and %d more problems", more)})
	}
	return d.doc, d.problems
}

// tooDeep is a problem at the bracket that opens one level too many.
func tooDeep(file string, data []byte) *Problem {
	open, line, col := 0, 1, 0
	for _, c := range data {
		col++
		switch c {
		case '\n':
			line, col = line+1, 0
		case '[', '{':
			open++
		case ']', '}':
			open = max(open-1, 0)
		}
		if open > maxOpen {
			return &Problem{file, line, col, fmt.Sprintf("more than %d brackets are open", maxOpen)}
		}
	}
	return nil
}

// goccy's messages begin with "[line:column] " and go on with an excerpt over several lines.
var parserPlace = regexp.MustCompile(`^\[(\d+):(\d+)\] `)

func parse(file string, data []byte) (body ast.Node, problem *Problem) {
	defer func() {
		if r := recover(); r != nil { // the parser is not ours; hostile text must not end the process
			problem = &Problem{File: file, Text: fmt.Sprintf("not valid YAML: parser failed: %v", r)}
		}
	}()
	if p := tooDeep(file, data); p != nil {
		return nil, p
	}
	f, err := parser.ParseBytes(data, 0, parser.AllowDuplicateMapKey())
	if err != nil {
		first, _, _ := strings.Cut(err.Error(), "\n")
		p := Problem{File: file}
		if m := parserPlace.FindStringSubmatch(first); m != nil {
			p.Line, _ = strconv.Atoi(m[1])
			p.Col, _ = strconv.Atoi(m[2])
			first = first[len(m[0]):]
		}
		p.Text = "not valid YAML: " + first
		return nil, &p
	}
	for _, doc := range f.Docs {
		if doc.Body == nil {
			continue
		}
		if body != nil {
			pos := doc.Body.GetToken().Position
			return nil, &Problem{file, pos.Line, pos.Column, "a second document begins here; one file holds one"}
		}
		body = doc.Body
	}
	return body, nil
}

type decoder struct {
	doc      *Doc
	problems []Problem
}

func (d *decoder) fail(n ast.Node, format string, args ...any) {
	pos := n.GetToken().Position
	d.problems = append(d.problems, Problem{d.doc.File, pos.Line, pos.Column, fmt.Sprintf(format, args...)})
}

// value decodes node n into v. path names v for Doc.Problem.
func (d *decoder) value(n ast.Node, v reflect.Value, path string, depth int) {
	if depth > MaxDepth {
		d.fail(n, "nested deeper than %d", MaxDepth)
		return
	}
	if path != "" {
		d.doc.at[path] = *n.GetToken().Position
	}
	if v.Type() == reflect.TypeFor[[]Field]() {
		d.fields(n, v, path, depth)
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		if v.IsNil() {
			v.Set(reflect.New(v.Type().Elem()))
		}
		d.value(n, v.Elem(), path, depth)
	case reflect.Struct:
		d.structure(n, v, path, depth)
	case reflect.Slice:
		d.slice(n, v, path, depth)
	default:
		d.scalar(n, v, path)
	}
}

// entries lists a mapping's keys and values, complaining of anything else and of repeated keys.
func (d *decoder) entries(n ast.Node, path string) (keys []string, vals []*ast.MappingValueNode) {
	var all []*ast.MappingValueNode
	switch m := n.(type) {
	case *ast.MappingNode:
		all = m.Values
	case *ast.MappingValueNode:
		all = []*ast.MappingValueNode{m}
	default:
		d.fail(n, "%s: want a mapping, got %s", name(path), describe(n))
		return nil, nil
	}
	seen := map[string]bool{}
	for _, e := range all {
		k, ok := e.Key.(*ast.StringNode)
		if !ok {
			d.fail(e.Key, "%s: a key must be plain text, got %s", name(path), describe(e.Key))
			continue
		}
		if seen[k.Value] {
			d.fail(e.Key, "key %q stands twice", join(path, k.Value))
			continue
		}
		seen[k.Value] = true
		keys, vals = append(keys, k.Value), append(vals, e)
	}
	return keys, vals
}

func (d *decoder) structure(n ast.Node, v reflect.Value, path string, depth int) {
	keys, vals := d.entries(n, path)
	for i, key := range keys {
		f, known := fieldByKey(v, key)
		if !known {
			d.fail(vals[i].Key, "unknown key %q; known here: %s", join(path, key), strings.Join(keysOf(v.Type()), ", "))
			continue
		}
		d.value(vals[i].Value, f, join(path, key), depth+1)
		// Point at the key: that is where a reader looks.
		d.doc.at[join(path, key)] = *vals[i].Key.GetToken().Position
	}
}

func (d *decoder) slice(n ast.Node, v reflect.Value, path string, depth int) {
	seq, ok := n.(*ast.SequenceNode)
	if !ok {
		d.fail(n, "%s: want a list, got %s", name(path), describe(n))
		return
	}
	out := reflect.MakeSlice(v.Type(), len(seq.Values), len(seq.Values))
	for i, e := range seq.Values {
		d.value(e, out.Index(i), fmt.Sprintf("%s[%d]", path, i), depth+1)
	}
	v.Set(out)
}

func (d *decoder) fields(n ast.Node, v reflect.Value, path string, depth int) {
	keys, vals := d.entries(n, path)
	out := make([]Field, 0, len(keys))
	for i, key := range keys {
		val, err := toJSON(vals[i].Value, depth+1)
		if err != nil {
			d.fail(vals[i].Value, "%s: %v", join(path, key), err)
			continue
		}
		out = append(out, Field{key, val})
	}
	v.Set(reflect.ValueOf(out))
}

func (d *decoder) scalar(n ast.Node, v reflect.Value, path string) {
	switch v.Kind() {
	case reflect.String:
		if s, ok := text(n); ok {
			v.SetString(s)
			return
		}
		d.fail(n, "%s: want text, got %s; put it in quotes", name(path), describe(n))
	case reflect.Bool:
		if b, ok := n.(*ast.BoolNode); ok {
			v.SetBool(b.Value)
			return
		}
		d.fail(n, "%s: want true or false, got %s", name(path), describe(n))
	case reflect.Int, reflect.Int32, reflect.Int64:
		i, ok := integer(n)
		if !ok {
			d.fail(n, "%s: want a whole number, got %s", name(path), describe(n))
		} else if v.OverflowInt(i) {
			d.fail(n, "%s: %d is out of range", name(path), i)
		} else {
			v.SetInt(i)
		}
	case reflect.Float64:
		f, ok := number(n)
		if !ok {
			d.fail(n, "%s: want a finite number, got %s", name(path), describe(n))
			return
		}
		v.SetFloat(f)
	default:
		panic("strictyaml: unsupported field type " + v.Type().String())
	}
}

func text(n ast.Node) (string, bool) {
	switch s := n.(type) {
	case *ast.StringNode:
		return s.Value, true
	case *ast.LiteralNode:
		return s.Value.Value, true
	}
	return "", false
}

func integer(n ast.Node) (int64, bool) {
	i, ok := n.(*ast.IntegerNode)
	if !ok {
		return 0, false
	}
	switch x := i.Value.(type) {
	case int64:
		return x, true
	case uint64:
		return int64(x), x <= math.MaxInt64
	}
	return 0, false
}

var bareFloat = regexp.MustCompile(`^[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$`)

func number(n ast.Node) (float64, bool) {
	if i, ok := integer(n); ok {
		return float64(i), true
	}
	switch x := n.(type) {
	case *ast.FloatNode:
		return x.Value, !math.IsInf(x.Value, 0) && !math.IsNaN(x.Value)
	case *ast.StringNode: // 1e-6 without a point is text to this parser, a number to everyone else
		if x.Token.Type == token.StringType && bareFloat.MatchString(x.Value) {
			f, err := strconv.ParseFloat(x.Value, 64)
			return f, err == nil
		}
	}
	return 0, false
}

var errKind = errors.New("want text, a number, true, false, null or a list of these")

func toJSON(n ast.Node, depth int) (json.RawMessage, error) {
	if depth > MaxDepth {
		return nil, fmt.Errorf("nested deeper than %d", MaxDepth)
	}
	var v any
	switch x := n.(type) {
	case *ast.NullNode:
	case *ast.BoolNode:
		v = x.Value
	case *ast.SequenceNode:
		list := []json.RawMessage{}
		for _, e := range x.Values {
			j, err := toJSON(e, depth+1)
			if err != nil {
				return nil, err
			}
			list = append(list, j)
		}
		v = list
	default:
		if s, ok := text(n); ok {
			v = s
		} else if i, ok := integer(n); ok {
			v = i
		} else if f, ok := number(n); ok {
			v = f
		} else {
			return nil, errKind
		}
	}
	return Marshal(v)
}

// Marshal is json.Marshal without HTML escaping.
func Marshal(v any) (json.RawMessage, error) {
	var b strings.Builder
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return nil, err
	}
	return json.RawMessage(strings.TrimSuffix(b.String(), "\n")), nil
}

func fieldByKey(v reflect.Value, key string) (reflect.Value, bool) {
	for i := range v.NumField() {
		if tagKey(v.Type().Field(i)) == key {
			return v.Field(i), true
		}
	}
	return reflect.Value{}, false
}

func keysOf(t reflect.Type) []string {
	var keys []string
	for i := range t.NumField() {
		if k := tagKey(t.Field(i)); k != "" {
			keys = append(keys, k)
		}
	}
	return keys
}

// tagKey is the YAML key of a field, "" for one that the document cannot set.
func tagKey(f reflect.StructField) string {
	k, _, _ := strings.Cut(f.Tag.Get("yaml"), ",")
	if k == "-" {
		return ""
	}
	return k
}

func describe(n ast.Node) string {
	switch x := n.(type) {
	case *ast.MappingNode, *ast.MappingValueNode:
		return "a mapping"
	case *ast.SequenceNode:
		return "a list"
	case *ast.NullNode:
		return "nothing"
	case *ast.AnchorNode, *ast.AliasNode, *ast.TagNode, *ast.MergeKeyNode:
		return "an anchor, alias, merge or tag (not supported)"
	default:
		return fmt.Sprintf("%.40q", x.GetToken().Value)
	}
}

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

func name(path string) string {
	if path == "" {
		return "document"
	}
	return path
}
