package trainer

import (
	"bytes"
	"strings"
	"testing"
)

// Ballots that were dropped stand in the line of their step; without any the line says nothing of ballots.
func TestProgressTellsOfDroppedBallots(t *testing.T) {
	for dropped, want := range map[float64]string{0: "", 2: "2 of 6 ballots dropped"} {
		var out bytes.Buffer
		p := newProgress(&out, false)
		p.begin(0, Default())
		p.step(state{Step: 1}, metrics{"router/ballots": 6, "router/dropped": dropped})
		if got := out.String(); want == "" && strings.Contains(got, "ballots") || !strings.Contains(got, want) {
			t.Errorf("%g dropped: %q", dropped, got)
		}
	}
}
