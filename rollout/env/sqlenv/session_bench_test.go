package sqlenv

import (
	"encoding/json"
	"testing"
	"time"
)

// BenchmarkEpisode is one whole attempt: open, look up, query, commit, grade, close.
func BenchmarkEpisode(b *testing.B) {
	e := New(Options{Timeout: time.Second})
	p := fixed{[]Table{people()}, View{}}
	for b.Loop() {
		s, err := e.OpenProblem(b.Context(), p)
		if err != nil {
			b.Fatal(err)
		}
		exec(b, s, "DESCRIBE t")
		exec(b, s, "SELECT count(*) FROM t WHERE a > '3'")
		s.Commit(json.RawMessage(`["1"]`))
		if _, err := s.Grade(b.Context()); err != nil {
			b.Fatal(err)
		}
		s.Close()
	}
}
