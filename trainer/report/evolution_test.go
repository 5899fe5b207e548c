package report

import (
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"harness-s/router/evolve"
)

// evolutionFolder writes a small evolution by hand: two children of h0 and one of them a parent.
func evolutionFolder(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write(evolve.LineageName, `{"seed":1,"nodes":[
	 {"id":"h0","generation":0,"valid":true,"success":0.25,"solved":1},
	 {"id":"look","parent":"h0","generation":1,"valid":true,"direction":{"id":"guesses","description":"guesses <names>","evidence":["r1"],"tasks":1},
	  "manifest":{"child":"look","parent":"h0","changes":["says: look first"]},"success":0.5,"solved":2},
	 {"id":"look-more","parent":"look","generation":2,"valid":true,"direction":{"id":"gives-up","description":"gives up","evidence":["r2"],"tasks":1},"success":0.25,"solved":1}],
	 "generations":[{"number":1,"parents":["h0"],"causes":{"h0":{"guesses":3,"gives-up":1}},"children":["look"],"next_parents":["look"]},
	  {"number":2,"parents":["look"],"causes":{"look":{"gives-up":2}},"children":["look-more"]}]}`)
	write(evolve.MatrixName, `{"tasks":[{"id":"val-0","kind":"count"},{"id":"val-1","kind":"list"},{"id":"val-2","kind":"count","cause":"gives-up"},{"id":"val-3","kind":"count","cause":"gives-up"}],"attempts":2,"rows":[
	 {"harness":"h0","generation":0,"wins":[2,0,0,0],"tries":[2,2,2,2],"success":0.25,"solved":1},
	 {"harness":"look","generation":1,"wins":[2,2,0,0],"tries":[2,2,2,2],"success":0.5,"solved":2,"gains":["val-1"]},
	 {"harness":"look-more","generation":2,"wins":[0,0,2,0],"tries":[2,2,2,0],"success":0.33,"solved":1,"gains":["val-2"],"regressions":["val-0"]}]}`)
	write(evolve.RejectedName, `{"candidate":"g1-x","reason":"leak","detail":"names table <b>t</b>"}`+"\n")
	return dir
}

func TestEvolutionReport(t *testing.T) {
	dir := evolutionFolder(t)
	p, err := evolutionPage(dir)
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []string{"2", "75.0%", "25.0%", "50.0%"} {
		if p.Tiles[i].Value != want {
			t.Errorf("tile %s: %s, want %s", p.Tiles[i].Name, p.Tiles[i].Value, want)
		}
	}
	if c := p.Causes[0]; c.Cause != "gives-up" || c.Failures[0] != 1 || c.Failures[1] != 2 || c.Tasks != 2 || c.Solved != 1 || c.Children[0] != (siblingRef{"look-more", 1, 1}) {
		t.Errorf("causes: %+v", p.Causes)
	}
	if s := p.Siblings[1]; !s.Next || s.Direction != "guesses <names>" || len(s.Changes) != 1 {
		t.Errorf("siblings: %+v", p.Siblings)
	}
	path, err := WriteEvolution(dir)
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	text := string(page)
	for _, must := range []string{"at work", "guesses &lt;names&gt;", `class="cell lost"`, "names table &lt;b&gt;t&lt;/b&gt;", "<b>+1</b>/1"} {
		if !strings.Contains(text, must) {
			t.Errorf("the page lacks %q", must)
		}
	}
	for _, mustNot := range []string{"<names>", "<script", "http://", "https://"} {
		if strings.Contains(text, mustNot) {
			t.Errorf("the page has %q", mustNot)
		}
	}
	if got := strings.Count(text, `class="cell lost"`); got != 1 {
		t.Errorf("%d regressions drawn, want 1: a task never tried is none", got)
	}
}

func TestEvolutionReportRefuses(t *testing.T) {
	dir := evolutionFolder(t)
	path := filepath.Join(dir, evolve.MatrixName)
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"other":     strings.Replace(string(raw), `"harness":"look"`, `"harness":"other"`, 1),
		"short":     strings.Replace(string(raw), `"wins":[2,2,0,0]`, `"wins":[2]`, 1),
		"malformed": string(raw)[:40],
	} {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if _, err := WriteEvolution(dir); err == nil || !strings.Contains(err.Error(), dir) {
			t.Errorf("%s: error %v, want one that names the folder", name, err)
		}
	}
}

func TestViewOfAnEvolution(t *testing.T) {
	w := httptest.NewRecorder()
	r := httptest.NewRequest("GET", "http://localhost/", nil)
	Handler(evolutionFolder(t)).ServeHTTP(w, r)
	if w.Code != 200 || !strings.Contains(w.Body.String(), "<h2>Lineage</h2>") {
		t.Errorf("status %d: %.200s", w.Code, w.Body)
	}
}
