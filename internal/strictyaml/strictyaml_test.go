package strictyaml

import (
	"strings"
	"testing"
)

type inner struct {
	N    int     `yaml:"n"`
	Text string  `yaml:"text"`
	Rate float64 `yaml:"rate"`
}

type outer struct {
	ID   string   `yaml:"id"`
	On   bool     `yaml:"on"`
	Opt  *inner   `yaml:"opt"`
	List []inner  `yaml:"list"`
	Args []Field  `yaml:"args"`
	Tags []string `yaml:"tags"`
	Skip int      `yaml:"-"`
}

func TestDecodeGood(t *testing.T) {
	got := outer{ID: "default", Opt: &inner{N: 7, Rate: 1}}
	doc, problems := Decode("a.yaml", []byte(`# comment
on: true
opt: {text: "x: y", rate: 1e-6}
list:
  - n: 3
    text: |
      two
      lines
  - rate: 2
args:
  query: "SELECT 1"
  answers: [a, 2, 1.5, true, null]
tags: [one, two]
`), &got)
	if len(problems) != 0 {
		t.Fatal(problems)
	}
	if got.ID != "default" || !got.On || got.Opt.N != 7 || got.Opt.Rate != 1e-6 || got.Opt.Text != "x: y" {
		t.Errorf("got %+v %+v", got, got.Opt)
	}
	if len(got.List) != 2 || got.List[0].Text != "two\nlines\n" || got.List[1].Rate != 2 {
		t.Errorf("list: %+v", got.List)
	}
	if len(got.Args) != 2 || string(got.Args[0].Value) != `"SELECT 1"` || string(got.Args[1].Value) != `["a",2,1.5,true,null]` {
		t.Errorf("args: %s", got.Args)
	}
	if p := doc.Problem("list[0].text", "bad"); p.Error() != "a.yaml:6:5: bad" {
		t.Errorf("place of a known value: %v", p)
	}
	if p := doc.Problem("list[1].nothing.here", "bad"); p.Line != 9 {
		t.Errorf("place of a missing value is its nearest parent: %v", p)
	}
}

func TestDecodeBad(t *testing.T) {
	for _, c := range []struct{ name, in, want string }{
		{"unknown key", "id: a\nopt:\n  m: 1\n", `a.yaml:3:3: unknown key "opt.m"; known here: n, text, rate`},
		{"ignored field", "skip: 1\n", `a.yaml:1:1: unknown key "skip"`},
		{"fraction", "opt:\n  n: 1.5\n", `a.yaml:2:6: opt.n: want a whole number, got "1.5"`},
		{"too large", "opt: {n: 99999999999999999999}\n", "want a whole number"},
		{"number as text", "id: 12\n", `a.yaml:1:5: id: want text, got "12"; put it in quotes`},
		{"null as text", "id:\n", "id: want text, got nothing"},
		{"text as bool", "on: yes\n", "want true or false"},
		{"repeated key", "id: a\nid: b\n", `a.yaml:2:1: key "id" stands twice`},
		{"list for mapping", "opt: [1]\n", "opt: want a mapping, got a list"},
		{"scalar for list", "tags: one\n", "tags: want a list"},
		{"anchor", "id: &x a\n", "anchor"},
		{"alias", "tags: [&x a, *x]\n", "anchor, alias"},
		{"merge", "opt:\n  <<: {n: 1}\n", "a key must be plain text"},
		{"nan", "opt: {rate: .nan}\n", "want a finite number"},
		{"infinity", "opt: {rate: .inf}\n", "want a finite number"},
		{"two documents", "id: a\n---\nid: b\n", "a.yaml:3:"},
		{"syntax", "id: [a\n", "not valid YAML"},
		{"scalar document", "hello\n", "document: want a mapping"},
		{"mapping in args", "args: {a: {b: 1}}\n", "args.a: want text, a number"},
		{"deep", "args:\n  a: " + strings.Repeat("[", 40) + strings.Repeat("]", 40), "nested deeper"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var got outer
			_, problems := Decode("a.yaml", []byte(c.in), &got)
			if len(problems) == 0 {
				t.Fatalf("accepted: %+v", got)
			}
			if !strings.Contains(problems[0].Error(), c.want) {
				t.Errorf("got  %s\nwant %s", problems[0].Error(), c.want)
			}
		})
	}
}

func TestDecodeReportsAllProblems(t *testing.T) {
	var got outer
	_, problems := Decode("a.yaml", []byte("idd: a\non: 3\nopt: {n: x}\n"), &got)
	if len(problems) != 3 {
		t.Fatalf("got %d problems, want 3: %v", len(problems), problems)
	}
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte("id: a\nopt: {n: 1}\n"))
	f.Add([]byte("list:\n- n: 1\n  text: >\n    x\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) > 4096 {
			return
		}
		var got outer
		Decode("fuzz", data, &got) // must neither panic nor hang
	})
}

// TestDecodeBoundsHostileText: the parser takes seconds over 64 KiB of brackets, and a flood of problems helps nobody.
func TestDecodeBoundsHostileText(t *testing.T) {
	var x outer
	_, problems := Decode("a.yaml", []byte("tags: [x]\nargs: "+strings.Repeat("[{a: ", 30000)), &x)
	if len(problems) != 1 || problems[0].Line != 2 || !strings.Contains(problems[0].Text, "brackets") {
		t.Errorf("brackets: %v", problems)
	}
	_, problems = Decode("a.yaml", []byte(strings.Repeat("nope: 1\n", 100)), &x)
	if len(problems) != maxProblems+1 || !strings.Contains(problems[maxProblems].Text, "more problems") {
		t.Errorf("flood: %d problems, the last %v", len(problems), problems[len(problems)-1])
	}
}
