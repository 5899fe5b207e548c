package router

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"harness-s/rollout"
)

// Ballot is one voter's answer for one task.
type Ballot struct {
	Task    string   `json:"task"`
	Voter   string   `json:"voter"`
	Ranking []string `json:"ranking"` // best first; it may leave harnesses out
	// Repaired says what was put right: an unknown id left out, a repeated one counted at its first place.
	Repaired string `json:"repaired,omitempty"`
	// Dropped says why the ballot does not count.
	Dropped string `json:"dropped,omitempty"`
	Cached  bool   `json:"-"` // an earlier choice rested on it
}

// minNamed is how many harnesses a ballot must name, or all of a smaller pool.
const minNamed = 3

// maxReason bounds what is kept of a reason, in bytes: a server's words may stand in it.
const maxReason = 300

// readBallot puts an answer right: ids that the pool does not have are left out, a repeated id counts at its first place. A
// ballot is dropped when fewer than minNamed harnesses remain, or fewer than there were unknown ids.
func readBallot(ids, answer []string) (b Ballot) {
	unknown, twice := 0, 0
	for _, id := range answer {
		id = strings.TrimSpace(id)
		switch {
		case !slices.Contains(ids, id):
			unknown++
		case slices.Contains(b.Ranking, id):
			twice++
		default:
			b.Ranking = append(b.Ranking, id)
		}
	}
	if named := len(b.Ranking); named < min(minNamed, len(ids)) || named < unknown {
		return Ballot{Ranking: []string{}, Dropped: fmt.Sprintf("it names %d harnesses of the pool and %d others", named, unknown)}
	}
	if unknown+twice > 0 {
		b.Repaired = fmt.Sprintf("%d unknown and %d repeated ids left out", unknown, twice)
	}
	return b
}

// ask gets one voter's ballot. Whatever goes wrong makes a dropped ballot; an error means that nobody waits any more, or that
// the answer could not be kept.
func (r *Vote) ask(ctx context.Context, v Voter, t rollout.Task) (Ballot, error) {
	if _, ok := v.(embedded); ok {
		ranking, err := v.Vote(ctx, &r.view, t)
		if err != nil {
			return Ballot{}, err
		}
		return Ballot{Task: t.ID, Voter: v.Name(), Ranking: ranking}, nil
	}
	data, err := r.answers.get(ctx, r.ballotKey(v.Name(), t.ID), func() (json.RawMessage, error) {
		answer, err := v.Vote(ctx, &r.view, t)
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		b := readBallot(r.view.IDs, answer)
		if err != nil {
			b = Ballot{Ranking: []string{}, Dropped: clip(err.Error(), maxReason)}
		}
		b.Task, b.Voter = t.ID, v.Name()
		return json.Marshal(b)
	})
	if err != nil {
		return Ballot{}, err
	}
	var b Ballot
	if err := json.Unmarshal(data, &b); err != nil {
		return Ballot{}, fmt.Errorf("router: ballot of %s for task %s: %w", v.Name(), t.ID, err)
	}
	return b, b.check(r.view.IDs)
}

// check refuses a ballot, read back from a file, that no voter of this pool cast.
func (b Ballot) check(ids []string) error {
	seen := map[string]bool{}
	for _, id := range b.Ranking {
		if !slices.Contains(ids, id) || seen[id] {
			return fmt.Errorf("router: ballot of %s for task %s: %q is unknown or stands twice", b.Voter, b.Task, id)
		}
		seen[id] = true
	}
	if b.Task == "" || b.Voter == "" {
		return errors.New("router: a ballot without task or voter")
	}
	return nil
}

func (r *Vote) ballotKey(voter, task string) string {
	return "ballot " + r.version + " " + voter + " " + task
}

// clip cuts a text to at most n bytes, at a rune's start.
func clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && s[n]&0xc0 == 0x80 {
		n--
	}
	return s[:n]
}
