package taskgen

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sort"
	"strconv"
	"strings"

	"harness-s/rollout/env/sqlenv"
)

// builder makes one task.
type builder struct {
	*rand.Rand
	opt   Options
	split string
	used  map[string]bool // words of this task: no word is used twice
}

func (b *builder) chance(p float64) bool { return b.Float64() < p }

func (b *builder) between(lo, hi int) int { return lo + b.IntN(hi-lo+1) }

// word draws a fresh word of the split.
func (b *builder) word(r role) string {
	pool := vocabulary()[r][b.split]
	for {
		w := pool[b.IntN(len(pool))]
		if key := strings.TrimSuffix(w, "s"); !b.used[key] {
			b.used[key] = true
			return w
		}
	}
}

func (b *builder) pick(from []string, n int) []string {
	out := make([]string, n)
	for i, k := range b.Perm(len(from))[:n] {
		out[i] = from[k]
	}
	return out
}

// build draws the traps, then the tables, then what is asked.
func (b *builder) build(kind string) *Task {
	t := &Task{Kind: kind, Form: kind, view: sqlenv.View{MaxRows: b.opt.MaxRows, ShowCount: !b.opt.NoCount}}
	if kind == Empty {
		t.Form = b.pick([]string{Count, Lookup, List}, 1)[0]
	}
	b.drawTraps(t)
	b.makeTables(t)
	b.ask(t)
	t.Question = t.question()
	t.Gold = t.gold(b.opt.MaxRows)
	return t
}

// drawTraps draws every trap always, so that one chance does not shift another's draws, and keeps those the kind
// allows. An empty look-up or list has none: an agent that gives up with "none" would be right by accident.
func (b *builder) drawTraps(t *Task) {
	p := b.opt.Probs
	t.Traps = Traps{Opaque: b.chance(p.Opaque), Cut: b.chance(p.Cut), Dirty: b.chance(p.Dirty), Quote: b.chance(p.Quote)}
	empty := t.Kind == Empty
	if empty && t.Form != Count {
		t.Traps = Traps{}
		return
	}
	t.Traps.Cut = t.Traps.Cut && !empty && (t.Form == Count || t.Form == List)
	t.Traps.Dirty = t.Traps.Dirty && (t.Form == Lookup || t.Form == Update || t.Form == Join)
}

// names is whether the form names an entity.
func (t *Task) names() bool { return t.Form != Count && t.Form != List && t.Form != Largest }

// makeTables makes the main table and, for a join, the linked one.
func (b *builder) makeTables(t *Task) {
	quote := "" // which name needs quoting
	if t.Traps.Quote {
		options := []string{"table"}
		if t.names() {
			options = append(options, "entity")
		}
		if !t.Traps.Opaque {
			options = append(options, "concept")
		}
		quote = b.pick(options, 1)[0]
	}
	words := b.pick(concepts, 3)
	asked := b.IntN(len(words))
	if t.Form == Insert || t.Form == Join {
		words, asked = words[:2], asked%2
	}
	if quote == "concept" {
		words[asked] = b.pick(quotedConcepts, 1)[0]
	}
	t.Table = b.word(tableRole)
	if quote == "table" {
		t.Table = b.pick(adjectives, 1)[0] + " " + t.Table
	}
	valued := b.valueTable(t.Table, words, t.Traps.Opaque)
	if t.Form == Join {
		t.Other = b.word(tableRole)
		valued.Name = t.Other
		t.tables = []sqlenv.Table{b.linkTable(t, valued), valued}
	} else {
		t.tables = []sqlenv.Table{valued}
	}
	t.Concept, t.Column = words[asked], valued.Columns[1+asked].Name
	if t.names() {
		b.chooseEntity(t, quote == "entity")
	}
}

// valueTable has names and whole numbers from 1 to 99, different within a column.
func (b *builder) valueTable(name string, words []string, opaque bool) sqlenv.Table {
	tab := sqlenv.Table{Name: name, Columns: []sqlenv.Column{{Name: "name", Type: "TEXT", Comment: "name"}}}
	for _, w := range words {
		col := w
		if opaque {
			col = b.word(codeRole)
		}
		tab.Columns = append(tab.Columns, sqlenv.Column{Name: col, Type: "INTEGER", Comment: w})
	}
	n := b.between(b.opt.MinTable, b.opt.MaxTable)
	vals := make([][]int, len(words))
	for i := range vals {
		vals[i] = b.Perm(99)[:n]
	}
	for r := range n {
		row := []any{b.word(entityRole)}
		for i := range words {
			row = append(row, int64(vals[i][r]+1))
		}
		tab.Rows = append(tab.Rows, row)
	}
	return tab
}

// linkTable has names and a link into other. Its columns are plain words: one look-up explains a join's codes.
func (b *builder) linkTable(t *Task, other sqlenv.Table) sqlenv.Table {
	t.Link = b.pick(links, 1)[0]
	tab := sqlenv.Table{Name: t.Table, Columns: []sqlenv.Column{{Name: "name", Type: "TEXT", Comment: "name"}, {Name: t.Link, Type: "TEXT", Comment: t.Link}}}
	for range b.between(b.opt.MinTable, b.opt.MaxTable) {
		tab.Rows = append(tab.Rows, []any{b.word(entityRole), other.Rows[b.IntN(len(other.Rows))][0]})
	}
	return tab
}

// chooseEntity picks the row that is asked about, or a name that is not there.
func (b *builder) chooseEntity(t *Task, apostrophe bool) {
	if t.Form == Insert || t.Kind == Empty {
		t.Entity = b.word(entityRole)
	} else {
		t.Entity = t.tables[0].Rows[b.IntN(len(t.tables[0].Rows))][0].(string)
	}
	plain := t.Entity
	if apostrophe {
		t.Entity = t.Entity[:2] + "'" + t.Entity[2:]
	}
	if t.Form == Insert || t.Kind == Empty {
		return
	}
	t.Stored = t.Entity
	if t.Traps.Dirty {
		t.Stored = b.pick([]string{" " + t.Entity, t.Entity + " ", strings.ToUpper(t.Entity), " " + strings.ToUpper(t.Entity)}, 1)[0]
	}
	for _, row := range t.tables[0].Rows {
		if row[0] == plain {
			row[0] = t.Stored
		}
	}
}

// ask fixes the numbers of the question and its answer.
func (b *builder) ask(t *Task) {
	switch t.Form {
	case Count, List:
		b.askThreshold(t)
	case Largest:
		t.Smallest = b.chance(0.5)
		rows := t.byValue()
		best := rows[0]
		if t.Smallest {
			best = rows[len(rows)-1]
		}
		t.Answers = []string{best[0].(string)}
	case Lookup, Join:
		t.Answers = []string{"none"}
		if t.Stored != "" {
			t.Answers = []string{t.storedValue()}
		}
	case Update:
		b.askUpdate(t)
	case Insert:
		b.askInsert(t)
	}
}

// byValue are the rows of the valued table from the largest value asked for to the smallest.
func (t *Task) byValue() [][]any {
	tab := t.tables[len(t.tables)-1]
	at := columnAt(tab, t.Column)
	rows := slices.Clone(tab.Rows)
	sort.Slice(rows, func(i, j int) bool { return rows[i][at].(int64) > rows[j][at].(int64) })
	return rows
}

func columnAt(tab sqlenv.Table, name string) int {
	return slices.IndexFunc(tab.Columns, func(c sqlenv.Column) bool { return c.Name == name })
}

// askThreshold chooses how many rows match (m), then the threshold: values of a column differ, so the (m+1)-th value
// in order has exactly m beyond it.
func (b *builder) askThreshold(t *Task) {
	rows := t.byValue()
	shown := b.opt.MaxRows
	m := b.between(1, shown)
	switch {
	case t.Kind == Empty:
		m = 0
	case t.Traps.Cut:
		m = b.between(shown+1, min(len(rows)-1, shown+3, 2*shown)) // a second page is enough, and lists stay short
	}
	t.Op = ">"
	if b.chance(0.5) {
		t.Op = "<"
		slices.Reverse(rows)
	}
	t.Threshold = rows[m][columnAt(t.tables[0], t.Column)].(int64)
	switch {
	case t.Form == Count:
		t.Answers = []string{strconv.Itoa(m)}
	case m == 0:
		t.Answers = []string{"none"}
	default:
		for _, r := range rows[:m] {
			t.Answers = append(t.Answers, r[0].(string))
		}
	}
}

// storedValue is the value a look-up or join ends at.
func (t *Task) storedValue() string {
	name := t.Stored
	if t.Form == Join {
		for _, r := range t.tables[0].Rows {
			if r[0] == name {
				name = r[1].(string)
				break
			}
		}
	}
	tab := t.tables[len(t.tables)-1]
	for _, r := range tab.Rows {
		if r[0] == name {
			return fmt.Sprint(r[columnAt(tab, t.Column)])
		}
	}
	panic("taskgen: no row for " + name)
}

func cloneTable(t sqlenv.Table) sqlenv.Table {
	rows := make([][]any, len(t.Rows))
	for i, r := range t.Rows {
		rows[i] = slices.Clone(r)
	}
	t.Rows = rows
	return t
}

func (b *builder) askUpdate(t *Task) {
	at := columnAt(t.tables[0], t.Column)
	for t.Value == 0 {
		v := int64(b.between(1, 99))
		if !slices.ContainsFunc(t.tables[0].Rows, func(r []any) bool { return r[at] == v }) {
			t.Value = v
		}
	}
	after := cloneTable(t.tables[0])
	for _, r := range after.Rows {
		if r[0] == t.Stored {
			r[at] = t.Value
		}
	}
	t.expected = []sqlenv.Table{after}
	t.Answers = []string{"done"}
}

func (b *builder) askInsert(t *Task) {
	after := cloneTable(t.tables[0])
	row := []any{t.Entity}
	for _, c := range t.tables[0].Columns[1:] {
		v := int64(b.between(1, 99))
		t.Cells = append(t.Cells, Cell{Concept: c.Comment, Column: c.Name, Value: v})
		row = append(row, v)
	}
	after.Rows = append(after.Rows, row)
	t.expected = []sqlenv.Table{after}
	t.Answers = []string{"done"}
}

// question words the task.
func (t *Task) question() string {
	switch t.Form {
	case Count:
		return fmt.Sprintf("How many %s have %s %s %d?", t.Table, t.Concept, t.Op, t.Threshold)
	case List:
		return fmt.Sprintf("List the %s with %s %s %d.", t.Table, t.Concept, t.Op, t.Threshold)
	case Largest:
		if t.Smallest {
			return fmt.Sprintf("Which %s has the smallest %s?", t.Table, t.Concept)
		}
		return fmt.Sprintf("Which %s has the largest %s?", t.Table, t.Concept)
	case Lookup:
		return fmt.Sprintf("What is the %s of %s in %s?", t.Concept, t.Entity, t.Table)
	case Join:
		return fmt.Sprintf("What is the %s in %s of the %s of %s in %s?", t.Concept, t.Other, t.Link, t.Entity, t.Table)
	case Update:
		return fmt.Sprintf("Set the %s of %s in %s to %d.", t.Concept, t.Entity, t.Table, t.Value)
	}
	parts := make([]string, len(t.Cells))
	for i, c := range t.Cells {
		parts[i] = fmt.Sprintf("%s %d", c.Concept, c.Value)
	}
	return fmt.Sprintf("Add %s to %s with %s.", t.Entity, t.Table, strings.Join(parts, " and "))
}
