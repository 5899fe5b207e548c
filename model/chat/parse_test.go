package chat

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// typedTool has a parameter of each type.
func typedTool() Tool {
	return Tool{Name: "typed", Parameters: json.RawMessage(`{"type":"object","properties":{
		"s":{"type":"string"},"i":{"type":"integer"},"n":{"type":"number"},"b":{"type":"boolean"},"a":{"type":"array"},
		"o":{"type":"object"},"sn":{"type":["string","null"]},"in":{"type":["integer","null"]},"any":{}}}`)}
}

// show is a Parsed in one line: calls as name(key=value, ...).
func show(p Parsed) string {
	var b strings.Builder
	for _, c := range p.Calls {
		var args []string
		for _, a := range c.Args {
			args = append(args, a.Key+"="+string(a.Value))
		}
		fmt.Fprintf(&b, "%s(%s) ", c.Name, strings.Join(args, ", "))
	}
	return strings.TrimSpace(b.String())
}

const (
	open  = "<tool_call>\n<function=execute_sql>\n<parameter=query>\n"
	done  = "\n</parameter>\n</function>\n</tool_call>"
	call1 = open + "SELECT 1" + done
)

func TestParse(t *testing.T) {
	one := `execute_sql(query="SELECT 1")`
	cases := []struct{ name, text, calls, content, reasoning, err string }{
		{"one call", call1, one, "", "", ""},
		{"text around", "Let me see.\n\n" + call1 + "\nthanks", one, "Let me see.\n\n\nthanks", "", ""},
		{"two calls", call1 + "\n" + open + "SELECT 2" + done, one + ` execute_sql(query="SELECT 2")`, "", "", ""},
		{"two in one", "<tool_call><function=a></function><function=b></function></tool_call>", "a() b()", "", "", ""},
		{"several lines", open + "SELECT 1\nFROM t\n" + done, `execute_sql(query="SELECT 1\nFROM t\n")`, "", "", ""},
		{"on one line", "<tool_call><function=execute_sql><parameter=query>SELECT 1</parameter></function></tool_call>", one, "", "", ""},
		{"less than", open + "SELECT a FROM t WHERE a < 3 AND b <> '<x>'" + done, `execute_sql(query="SELECT a FROM t WHERE a < 3 AND b <> '<x>'")`, "", "", ""},
		{"no wrapper", "<function=execute_sql><parameter=query>SELECT 1</parameter></function>", one, "", "", ""},
		{"no call closer", open + "SELECT 1\n</parameter>\n</function>", one, "", "", ""},
		{"no function closer", open + "SELECT 1\n</parameter>\n</tool_call> bye", one, "bye", "", ""},
		{"no closers behind the value", open + "SELECT 1\n</parameter>", one, "", "", ""},
		{"no value closer", "<tool_call><function=execute_sql><parameter=query>\nSELECT 1\n</function></tool_call>", one, "", "", ""},
		{"no value closer, next parameter", "<function=f><parameter=a>1<parameter=b>2</parameter></function>", `f(a="1", b="2")`, "", "", ""},
		{"next call begins", open + "SELECT 1\n</parameter>\n" + call1, one + " " + one, "", "", ""},
		{"words before the function", "<tool_call> I call <function=f></function></tool_call>", "f()", "", "", ""},
		{"unknown tool", "<tool_call><function=nothing><parameter=x>1</parameter></function></tool_call>", `nothing(x="1")`, "", "", ""},
		{"cut in a value", open + "SELECT COUNT(", "", "", "", "query was cut off"},
		{"cut in a closer", open + "SELECT 1\n</param", "", "", "", "query was cut off"},
		{"cut before a value", "<tool_call>\n<function=execute_sql>", "", "", "", "cut off"},
		{"cut in the name", "<tool_call>\n<function=exec", "", "", "", "no <function=NAME>"},
		{"cut, one call good", call1 + open + "SELECT", one, "", "", "Tool call 2"},
		{"empty call", "<tool_call></tool_call>", "", "", "", "no <function=NAME>"},
		{"other syntax", "<tool_call>execute_sql('x')</tool_call> ok", "", "ok", "", "no <function=NAME>"},
		{"no name", "<tool_call><function=></function></tool_call>", "", "", "", "no <function=NAME>"},
		{"long name", "<tool_call><function=" + strings.Repeat("a", 500) + "></function></tool_call>", "", "", "", "no <function=NAME>"},
		{"key twice", "<function=f><parameter=a>1</parameter><parameter=a>2</parameter></function>", "", "", "", "twice"},
		{"stray closers", "a </tool_call> b </parameter>", "", "a </tool_call> b </parameter>", "", ""},
		{"no call", "The answer is 3.", "", "The answer is 3.", "", ""},
		{"JSON call", "<tool_call>\n{\"name\": \"execute_sql\", \"arguments\": {\"query\": \"SELECT '</tool_call>'\", \"n\": 1}}\n</tool_call>", `execute_sql(query="SELECT '</tool_call>'", n=1)`, "", "", ""},
		{"JSON call, arguments as text", `<tool_call>{"name":"f","arguments":"{\"a\":[1]}"}</tool_call>`, "f(a=[1])", "", "", ""},
		{"JSON call without arguments", `<tool_call>{"name":"f"}</tool_call>`, "f()", "", "", ""},
		{"JSON broken", `<tool_call>{"name":"f",</tool_call>` + call1, one, "", "", "JSON is broken"},
		{"JSON cut", `<tool_call>{"name":"f"`, "", "", "", "ends too early"},
		{"JSON without name", `<tool_call>{"arguments":{}}</tool_call>`, "", "", "", `no "name"`},
		{"JSON arguments list", `<tool_call>{"name":"f","arguments":[1]}</tool_call>`, "", "", "", "object"},
		{"JSON key twice", `<tool_call>{"name":"f","arguments":{"a":1,"a":2}}</tool_call>`, "", "", "", "twice"},
		{"JSON in a function", `<function=f>{"a": 1}</function>`, "f(a=1)", "", "", ""},
		{"thinking", "<think>\nhm\n</think>\n\n" + call1, one, "", "hm", ""},
		{"thinking without opener", "hm\n</think>\n\ntext", "", "text", "hm", ""},
		{"thinking not closed", "<think>\nhm " + call1, one, "", "hm", ""},
		{"only thinking", "<think>\nhm", "", "", "hm", ""},
		{"call in thinking", "<think>" + call1 + "</think>\nso", "", "so", call1, "inside <think>"},
		{"call thought of, then made", "<think>" + call1 + "</think>" + call1, one, "", call1, ""},
		{"closer in a value", open + "SELECT '</think>'" + done, `execute_sql(query="SELECT '</think>'")`, "", "", ""},
		{"invalid UTF-8", open + "a\xff\xfeb" + done, "execute_sql(query=\"a\uFFFDb\")", "", "", ""},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			p := Parse(c.text, dbTools())
			if got := show(p); got != c.calls {
				t.Errorf("calls %s, want %s", got, c.calls)
			}
			if p.Content != c.content || p.Reasoning != c.reasoning {
				t.Errorf("content %q, reasoning %q; want %q, %q", p.Content, p.Reasoning, c.content, c.reasoning)
			}
			errs := strings.Join(p.Errors, "\n")
			if (c.err == "") != (errs == "") || !strings.Contains(errs, c.err) {
				t.Errorf("errors %q, want %q", errs, c.err)
			}
		})
	}
}

func TestParseInsideOpenThinking(t *testing.T) {
	r := newRenderer(t, testTokenizer(t), true)
	for text, want := range map[string]Parsed{
		"hm":                  {Reasoning: "hm"},
		"hm</think>\n\nthree": {Reasoning: "hm", Content: "three"},
	} {
		p := r.Parse(text, nil)
		if p.Reasoning != want.Reasoning || p.Content != want.Content || len(p.Errors) > 0 {
			t.Errorf("%q: %+v", text, p)
		}
	}
	if p := r.Parse("hm "+call1, nil); len(p.Calls) != 1 || p.Reasoning != "hm" {
		t.Errorf("a call ends thinking: %+v", p)
	}
}

func TestParseTypesValues(t *testing.T) {
	for _, c := range []struct{ key, text, want string }{
		{"s", "5", `"5"`}, {"s", "null", `"null"`}, {"s", "[1]", `"[1]"`}, {"s", " x ", `" x "`}, {"s", "", `""`},
		{"i", "5", "5"}, {"i", " -5 \n", "-5"}, {"i", "5.5", `"5.5"`}, {"i", "five", `"five"`}, {"i", "", `""`}, {"i", "007", `"007"`},
		{"n", "5", "5"}, {"n", "1e3", "1e3"}, {"n", "NaN", `"NaN"`},
		{"b", "true", "true"}, {"b", "False", "false"}, {"b", "1", `"1"`},
		{"a", `["x", "y"]`, `["x", "y"]`}, {"a", `['x', "y's", 1, True, None,]`, `["x","y's",1,true,null]`}, {"a", `('x',)`, `["x"]`},
		{"a", "x", `"x"`}, {"a", `["x"`, `"[\"x\""`}, {"a", `{"x":1}`, `"{\"x\":1}"`}, {"a", `['a\nb', 'it\'s']`, `["a\nb","it's"]`},
		{"a", `['\x41']`, `"['\\x41']"`}, {"a", strings.Repeat("[", 100), `"` + strings.Repeat("[", 100) + `"`},
		{"o", `{"k": [1]}`, `{"k": [1]}`}, {"o", `{'k': 1.5}`, `{"k":1.5}`}, {"o", `{k: 1}`, `"{k: 1}"`},
		{"sn", "null", `"null"`}, {"in", "None", "null"}, {"in", "3", "3"}, {"any", "3", `"3"`}, {"unknown", "3", `"3"`},
	} {
		p := Parse("<tool_call>\n<function=typed>\n<parameter="+c.key+">\n"+c.text+done, []Tool{typedTool()})
		if len(p.Calls) != 1 || len(p.Errors) > 0 || string(p.Calls[0].Args[0].Value) != c.want {
			t.Errorf("%s %q: %s %v, want %s", c.key, c.text, show(p), p.Errors, c.want)
		}
	}
}

func TestParseIsBounded(t *testing.T) {
	if p := Parse(strings.Repeat(call1, 40), nil); len(p.Calls) != maxCalls || len(p.Errors) != 1 || !strings.Contains(p.Errors[0], "first 16") {
		t.Errorf("%d calls, errors %v", len(p.Calls), p.Errors)
	}
	if p := Parse(strings.Repeat("x", maxTurnBytes+1), nil); len(p.Errors) != 1 || p.Content != "" {
		t.Errorf("over-long turn: %v", p.Errors)
	}
	args := ""
	for i := range maxArgs + 1 {
		args += fmt.Sprintf("<parameter=p%d>1</parameter>", i)
	}
	if p := Parse("<function=f>"+args+"</function>", nil); len(p.Calls) != 0 || len(p.Errors) != 1 {
		t.Errorf("%d parameters: %v", maxArgs+1, p.Errors)
	}
	// Quadratic work on any of these would take minutes.
	for _, unit := range []string{"<", "<tool_call>", "<tool_call>{", "<function=", "<function=a>", "<parameter=", "<parameter=a>", "</think>", "<think>", "</parameter>", "{", "['", "\\", "<tool_call>{\"a\":"} {
		n := (maxTurnBytes - 100) / len(unit)
		for _, prefix := range []string{"", "<function=typed><parameter=a>", "<tool_call>{\"name\":\"", "<tool_call><function=typed>"} {
			p := Parse(prefix+strings.Repeat(unit, n), []Tool{typedTool()})
			if len(p.Calls) > maxCalls || len(p.Errors) > maxCalls+2 {
				t.Errorf("%q %q: %d calls, %d errors", prefix, unit, len(p.Calls), len(p.Errors))
			}
		}
	}
}

// drawCall makes a call that the format can carry.
func drawCall(t *rapid.T) ToolCall {
	text := rapid.StringOfN(rapid.SampledFrom([]rune("ab '\"<>/=\\\n\t`;%é中{}[]:,\u2028")), 0, 30, -1)
	kinds := map[string]func() string{
		"s": func() string {
			s := text.Draw(t, "s")
			for _, m := range []string{paramOpen, paramClose, functionClose, callClose} {
				s = strings.ReplaceAll(s, m, "")
			}
			return quote(s)
		},
		"i": func() string { return fmt.Sprint(rapid.Int64().Draw(t, "i")) },
		"n": func() string { b, _ := json.Marshal(rapid.Float64Range(-1e30, 1e30).Draw(t, "n")); return string(b) },
		"b": func() string { return fmt.Sprint(rapid.Bool().Draw(t, "b")) },
		"a": func() string { b, _ := json.Marshal(rapid.SliceOfN(text, 0, 4).Draw(t, "a")); return string(b) },
		"o": func() string { b, _ := json.Marshal(rapid.MapOfN(text, text, 0, 3).Draw(t, "o")); return string(b) },
	}
	c := ToolCall{Name: "typed"}
	for _, key := range rapid.Permutation([]string{"s", "i", "n", "b", "a", "o"}).Draw(t, "keys") {
		if rapid.Bool().Draw(t, "with "+key) {
			c.Args = append(c.Args, Arg{key, json.RawMessage(kinds[key]())})
		}
	}
	return c
}

func TestFormatCallRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := drawCall(t)
		text, err := FormatCall(c)
		if err != nil {
			t.Fatal(err)
		}
		p := Parse("Before.\n\n"+text, []Tool{typedTool()})
		if len(p.Calls) != 1 || len(p.Errors) > 0 || p.Content != "Before." || p.Calls[0].Name != c.Name || len(p.Calls[0].Args) != len(c.Args) {
			t.Fatalf("%s\nread as %+v", text, p)
		}
		for i, a := range p.Calls[0].Args {
			want, got := canonical(c.Args[i].Value), canonical(a.Value)
			if a.Key != c.Args[i].Key || got != want {
				t.Fatalf("%s\n%s: %s, want %s", text, a.Key, got, want)
			}
		}
	})
}

// canonical is a value with numbers and blanks as Python writes them.
func canonical(raw json.RawMessage) string {
	s, err := pyJSON(raw)
	if err != nil {
		panic(err)
	}
	return s
}

func FuzzParse(f *testing.F) {
	f.Add(call1, true)
	f.Add("<think>a</think>"+call1+"<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":['x']}}</tool_call>", false)
	f.Add("<function=typed><parameter=a>['x', 1]</parameter><parameter=o>{'k': (1,)}</parameter>", false)
	f.Fuzz(func(t *testing.T, text string, thinking bool) {
		p := parse(text, []Tool{typedTool()}, thinking)
		if len(p.Calls) > maxCalls || len(p.Errors) > maxCalls+2 {
			t.Fatalf("%d calls, %d errors", len(p.Calls), len(p.Errors))
		}
		for _, c := range p.Calls {
			if c.Name == "" || len(c.Args) > maxArgs {
				t.Fatalf("call %+v", c)
			}
			for _, a := range c.Args {
				if !json.Valid(a.Value) {
					t.Fatalf("argument %q is not JSON: %s", a.Key, a.Value)
				}
			}
			if _, err := FormatCall(c); err != nil && !strings.Contains(err.Error(), "deeper") {
				t.Fatalf("a call that was read cannot be written: %v", err)
			}
		}
	})
}
