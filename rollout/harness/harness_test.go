package harness

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"harness-s/internal/testutil"
	"harness-s/model/chat"
)

var sqlTools = []chat.Tool{
	{Name: "execute_sql", Description: "Run one statement.", Parameters: json.RawMessage(
		`{"type": "object", "properties": {"query": {"type": "string", "description": "SQL"}, "note": {"type": "string"}}, "required": ["query"]}`)},
	{Name: "commit_final_answer", Description: "Finish.", Parameters: json.RawMessage(
		`{"type": "object", "properties": {"answers": {"type": "array", "items": {"type": "string"}}}, "required": ["answers"]}`)},
}

const full = `id: full
parent: h0
direction: everything at once
prompt:
  system: "Work on {{table}}."
  few_shot:
    - role: user
      content: How many?
    - role: assistant
      calls:
        - name: execute_sql
          arguments: {query: "SELECT COUNT(*) FROM t"}
    - role: tool
      content: "[(3,)]"
    - role: assistant
      content: three
  user: "{{question}}"
tools:
  - name: commit_final_answer
  - name: execute_sql
    description: Ask.
    arguments:
      - {name: query, description: "one line of <SQL>"}
      - {name: note, hide: true}
memory: {mode: last_k, keep: 2, max_observation_chars: 100}
rules:
  max_turns: {turns: 5}
  nudge_before_limit: {turns: 1, text: hurry}
  verify_before_finish: {tool: commit_final_answer, text: sure}
  refuse_repeat: {text: again}
  schema_on_error: {text: "schema:"}
  format_repair: {text: call a tool}
  empty_hint: {text: empty}
  truncated_hint: {text: cut}
`

func mustParse(t *testing.T, text string) *Spec {
	t.Helper()
	s, err := Parse("test.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestMessagesAndOffer(t *testing.T) {
	s := mustParse(t, full)
	if err := s.Validate(sqlTools); err != nil {
		t.Fatal(err)
	}
	msgs, err := s.Messages(map[string]string{"table": "T", "question": "what is {{table}}?"})
	if err != nil {
		t.Fatal(err)
	}
	want := []chat.Message{
		{Role: "system", Content: "Work on T."},
		{Role: "user", Content: "How many?"},
		{Role: "assistant", Calls: []chat.ToolCall{{Name: "execute_sql",
			Args: []chat.Arg{{Key: "query", Value: json.RawMessage(`"SELECT COUNT(*) FROM t"`)}}}}},
		{Role: "tool", Content: "[(3,)]"},
		{Role: "assistant", Content: "three"},
		{Role: "user", Content: "what is {{table}}?"}, // braces inside a value are not expanded again
	}
	if !reflect.DeepEqual(msgs, want) {
		t.Errorf("got  %+v\nwant %+v", msgs, want)
	}
	offered, err := s.Offer(sqlTools)
	if err != nil {
		t.Fatal(err)
	}
	if offered[0].Name != "commit_final_answer" || offered[0].Description != "Finish." || offered[1].Description != "Ask." {
		t.Errorf("offered %+v", offered)
	}
	if got := string(offered[1].Parameters); got != `{"type":"object","properties":{"query":{"type":"string","description":"one line of <SQL>"}},"required":["query"]}` {
		t.Errorf("parameters %s", got)
	}
	if strings.Contains(string(sqlTools[0].Parameters), "one line") {
		t.Error("the environment's own schema was changed")
	}
	if _, err := s.Messages(map[string]string{"question": "q"}); err == nil || !strings.Contains(err.Error(), "{{table}}") {
		t.Errorf("a missing variable must be named: %v", err)
	}
}

func TestBadSpecs(t *testing.T) {
	const head = "id: a\nparent: h0\ndirection: d\n"
	const prompt = "prompt: {user: \"{{question}}\"}\n"
	for _, c := range []struct{ name, in, want string }{
		{"unknown key", head + prompt + "rule: {}\n", `test.yaml:5:1: unknown key "rule"`},
		{"unknown rule", head + prompt + "rules:\n  run_sql: {text: x}\n", `test.yaml:6:3: unknown key "rules.run_sql"`},
		{"fraction", head + prompt + "rules:\n  max_turns: {turns: 1.5}\n", "test.yaml:6:22: rules.max_turns.turns: want a whole number"},
		{"no id", prompt, "id:"},
		{"bad id", "id: A b\n" + prompt, "test.yaml:1:1: id:"},
		{"no parent", "id: a\n" + prompt, "parent: missing"},
		{"own parent", "id: a\nparent: a\ndirection: d\n" + prompt, "own parent"},
		{"h0 with parent", "id: h0\nparent: a\ndirection: d\n" + prompt, "has no parent"},
		{"no direction", "id: a\nparent: h0\n" + prompt, "direction: missing"},
		{"no user", head + "prompt: {system: s}\n", "test.yaml:4:1: prompt.user: missing"},
		{"no variable", head + "prompt: {user: hello}\n", "uses no variable"},
		{"bad variable", head + "prompt: {user: \"{{question}} {{ table }}\"}\n", `"{{ table }}" is no variable`},
		{"stray braces", head + "prompt: {user: \"{{question}} }}\"}\n", "is no variable"},
		{"control", head + "prompt: {user: \"{{question}}\\u0007\"}\n", "control character U+0007"},
		{"tools block", head + "prompt: {user: \"{{question}}\", tools_block: some}\n", "prompt.tools_block: \"some\": want full or none"},
		{"words nobody reads", head + "prompt: {user: \"{{question}}\", tools_block: none}\ntools: [{name: execute_sql, description: x}]\n", "tools[0]: re-described"},
		{"too long", head + "prompt: {user: \"{{question}}\", system: \"" + strings.Repeat("x", MaxSystemBytes+1) + "\"}\n", "at most"},
		{"too large", head + prompt + "# " + strings.Repeat("x", MaxFileBytes), "larger than"},
		{"memory mode", head + prompt + "memory: {mode: some}\n", "memory.mode:"},
		{"keep missing", head + prompt + "memory: {mode: notes}\n", "memory.keep: 0; want 1"},
		{"keep useless", head + prompt + "memory: {keep: 3}\n", "no meaning"},
		{"cut too short", head + prompt + "memory: {max_observation_chars: 3}\n", "max_observation_chars"},
		{"no turns", head + prompt + "rules: {max_turns: {turns: 0}}\n", "rules.max_turns.turns: 0"},
		{"no text", head + prompt + "rules: {refuse_repeat: {text: \"\"}}\n", "rules.refuse_repeat.text: missing"},
		{"unknown tool", head + prompt + "tools: [{name: drop_all}]\n", `test.yaml:5:9: tools[0]:`},
		{"tool twice", head + prompt + "tools: [{name: execute_sql}, {name: execute_sql}]\n", "stands twice"},
		{"unknown argument", head + prompt + "tools: [{name: execute_sql, arguments: [{name: x, description: y}]}]\n", `no argument "x"`},
		{"hidden required", head + prompt + "tools: [{name: execute_sql, arguments: [{name: query, hide: true}]}]\n", "cannot be hidden"},
		{"argument without change", head + prompt + "tools: [{name: execute_sql, arguments: [{name: query}]}]\n", "give a description or hide"},
		{"verify hidden tool", head + prompt + "tools: [{name: execute_sql}]\nrules: {verify_before_finish: {tool: commit_final_answer, text: x}}\n", "not offered"},
		{"shots end with user", head + "prompt:\n  user: \"{{question}}\"\n  few_shot: [{role: user, content: x}]\n", "end with an assistant"},
		{"shot role", head + "prompt:\n  user: \"{{question}}\"\n  few_shot: [{role: system, content: x}, {role: assistant, content: y}]\n", "want user, assistant or tool"},
		{"tool shot without call", head + "prompt:\n  user: \"{{question}}\"\n  few_shot: [{role: tool, content: x}, {role: assistant, content: y}]\n", "a tool turn follows"},
		{"shot calls hidden tool", head + "prompt:\n  user: \"{{question}}\"\n  few_shot:\n  - {role: user, content: x}\n  - {role: assistant, calls: [{name: rm}]}\n  - {role: tool, content: x}\n  - {role: assistant, content: y}\n", `tool "rm" is not offered`},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, err := Parse("test.yaml", []byte(c.in))
			if err == nil {
				err = s.Validate(sqlTools)
			}
			if err == nil {
				t.Fatal("accepted")
			}
			if !strings.Contains(err.Error(), c.want) {
				t.Errorf("got  %v\nwant %s", err, c.want)
			}
		})
	}
}

func TestHashIsContent(t *testing.T) {
	base := mustParse(t, full)
	// The identity of a spec must survive releases: runs record it.
	const want = "68e4cd3cbe8c6f285acad2bff83a128ec2a019fc9fcac5151279ea6ea6b8c0d6"
	if got := base.Hash(); got != want {
		t.Errorf("hash of the full spec changed: %s", got)
	}
	same := strings.NewReplacer("id: full", "id: other", "everything at once", "else").Replace(full)
	if mustParse(t, same).Hash() != base.Hash() {
		t.Error("labels must not enter the hash")
	}
	plain := "id: h0\nprompt: {user: \"{{question}}\"}\n"
	if mustParse(t, plain).Hash() != mustParse(t, plain+"memory: {mode: all}\n").Hash() {
		t.Error("a default spelled out must not change the hash")
	}
	if mustParse(t, plain).Hash() != mustParse(t, strings.Replace(plain, "\"}", "\", tools_block: full}", 1)).Hash() {
		t.Error("the default tools block spelled out must not change the hash")
	}
	if mustParse(t, plain).Hash() == mustParse(t, strings.Replace(plain, "\"}", "\", tools_block: none}", 1)).Hash() {
		t.Error("tools_block: none must change the hash")
	}
	seen := map[string]string{base.Hash(): "nothing"}
	for _, edit := range [][2]string{{"Work on", "work on"}, {"three", "four"}, {"COUNT(*)", "count(*)"}, {"Ask.", "ask."}, {"hide: true", "description: x"},
		{"keep: 2", "keep: 3"}, {"turns: 5", "turns: 6"}, {"hurry", "run"}, {"text: cut", "text: Cut"}, {"last_k", "notes"}} {
		h := mustParse(t, strings.Replace(full, edit[0], edit[1], 1)).Hash()
		if other, ok := seen[h]; ok {
			t.Errorf("edit %v has the hash of %s", edit, other)
		}
		seen[h] = edit[0]
	}
}

func TestSaveLoadKeepsContent(t *testing.T) {
	s := mustParse(t, full)
	path := filepath.Join(t.TempDir(), "full.yaml")
	if err := s.Save(path); err != nil {
		t.Fatal(err)
	}
	got, err := Load(path)
	if err != nil {
		t.Fatal(err)
	}
	if got.Hash() != s.Hash() || got.ID != s.ID || got.Parent != s.Parent || got.Direction != s.Direction {
		t.Errorf("changed on the way: %s", s.YAML())
	}
	if string(got.YAML()) != string(s.YAML()) {
		t.Error("canonical YAML must be a fixed point")
	}
	if err := (&Spec{ID: "bad id"}).Save(path); err == nil {
		t.Error("an invalid spec must not be saved")
	}
}

func TestAnyValidSpecSurvivesYAML(t *testing.T) {
	text := rapid.StringMatching(`[ -~\n\té]{1,40}`)
	rapid.Check(t, func(t *rapid.T) {
		s := &Spec{ID: "x", Parent: "h0", Direction: text.Draw(t, "d"), Prompt: Prompt{System: text.Draw(t, "s"), User: "{{question}}" + text.Draw(t, "u")}}
		if rapid.Bool().Draw(t, "r") {
			s.Rules.FormatRepair = &TextRule{text.Draw(t, "fr")}
			s.Rules.NudgeBeforeLimit = &Nudge{rapid.IntRange(1, 9).Draw(t, "n"), text.Draw(t, "nt")}
		}
		if s.Validate(nil) != nil {
			t.Skip("stray braces")
		}
		got, err := Parse("x", s.YAML())
		if err != nil {
			t.Fatalf("%v\n%s", err, s.YAML())
		}
		if got.Hash() != s.Hash() {
			t.Fatalf("changed:\n%s", s.YAML())
		}
	})
}

func TestCheckPoolFindsEveryProblem(t *testing.T) {
	dir := t.TempDir()
	const prompt = "prompt: {user: \"{{question}}\"}\n"
	for name, text := range map[string]string{
		"h0.yaml":      "id: h0\n" + prompt,
		"twin.yaml":    "id: twin\nparent: h0\ndirection: d\n" + prompt,
		"orphan.yaml":  "id: orphan\nparent: nobody\ndirection: d\nprompt: {user: \"a {{question}}\"}\n",
		"one.yaml":     "id: one\nparent: two\ndirection: d\nprompt: {user: \"b {{question}}\"}\n",
		"two.yaml":     "id: two\nparent: one\ndirection: d\nprompt: {user: \"c {{question}}\"}\n",
		"wrong.yaml":   "id: right\nparent: h0\ndirection: d\nprompt: {user: \"d {{question}}\"}\n",
		"broken.yaml":  "id: broken\nwhat: 1\nwhy: 2\n",
		"ignored.txt":  "not a spec",
		".hidden.yaml": "not a spec",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	_, problems := CheckPool(dir, sqlTools)
	all := ""
	for _, p := range problems {
		all += strings.TrimPrefix(p.Error(), dir+"/") + "\n"
	}
	for _, want := range []string{
		"twin.yaml:1:1: id: same content as h0",
		`orphan.yaml:2:1: parent: no spec has the id "nobody"`,
		"one.yaml:2:1: parent: its line of parents never reaches h0",
		"two.yaml:2:1: parent: its line of parents never reaches h0",
		`wrong.yaml:1:1: id: "right" differs from the file's name`,
		`broken.yaml:2:1: unknown key "what"`,
		`broken.yaml:3:1: unknown key "why"`,
	} {
		if !strings.Contains(all, want) {
			t.Errorf("missing %q in\n%s", want, all)
		}
	}
	if len(problems) != 7 {
		t.Errorf("%d problems, want 7:\n%s", len(problems), all)
	}
	if _, err := LoadPool(dir); err == nil || !strings.Contains(err.Error(), "more)") {
		t.Errorf("LoadPool: %v", err)
	}
	if _, err := LoadPool(t.TempDir()); err == nil || !strings.Contains(err.Error(), "no spec has the id h0") {
		t.Errorf("an empty folder: %v", err)
	}
}

func TestShippedPool(t *testing.T) {
	dir := filepath.Join(testutil.Root(t), "recipes", "pools", "sql")
	pool, problems := CheckPool(dir, sqlTools)
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	if err := pool.RequireK(8); err != nil {
		t.Error(err)
	}
	if err := pool.RequireK(len(pool.Specs)); !errors.Is(err, ErrPoolTooSmall) {
		t.Errorf("K above the siblings: %v", err)
	}
	if pool.Base().ID != BaseID || len(pool.Siblings()) != len(pool.Specs)-1 {
		t.Error("h0 must come first")
	}
	if s, ok := pool.Get("look"); !ok || s.Parent != "h0" {
		t.Error("no sibling called look")
	}
	for _, s := range pool.Specs {
		if len(s.Prompt.System) > 120 {
			t.Errorf("%s: the small policy needs short prompts, got %d bytes", s.ID, len(s.Prompt.System))
		}
	}
	out := filepath.Join(t.TempDir(), "pool")
	if err := pool.Save(out); err != nil {
		t.Fatal(err)
	}
	again, err := LoadPool(out)
	if err != nil {
		t.Fatal(err)
	}
	for i, s := range pool.Specs {
		if again.Specs[i].Hash() != s.Hash() {
			t.Errorf("%s changed when saved", s.ID)
		}
	}
}

func TestWithPrefix(t *testing.T) {
	s := mustParse(t, "id: h0\nprompt: {system: s, user: \"{{question}}\"}\n")
	a, b, c := WithPrefix(s, 1), WithPrefix(s, 1), WithPrefix(s, 2)
	if a.Hash() != b.Hash() || a.Hash() == c.Hash() || a.Hash() == s.Hash() {
		t.Error("the prefix must depend on the seed alone")
	}
	if err := a.Validate(sqlTools); err != nil {
		t.Error(err)
	}
	if words := strings.Fields(strings.Split(a.Prompt.User, "\n")[0]); len(words) != PrefixWords {
		t.Errorf("%d words: %v", len(words), words)
	}
	if !strings.HasSuffix(a.Prompt.User, "\n"+s.Prompt.User) || s.ID != "h0" || s.Prompt.User != "{{question}}" {
		t.Error("the original prompt must follow, the original spec must stay")
	}
}
