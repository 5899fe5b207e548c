package router

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"

	"harness-s/rollout"
	"harness-s/router/llm"
)

// LLMVoter ranks by a language model. Each voter sees the candidates in an order of its own, drawn anew for each task, so that
// no candidate gains by its place in the question.
type LLMVoter struct {
	Label string // its name; differs between voters
	Model *llm.Client
	Seed  int64
}

// Name is the voter's name.
func (v *LLMVoter) Name() string { return v.Label }

// rankingSchema is the JSON schema of a ballot.
var rankingSchema = json.RawMessage(`{"type":"object","properties":{"ranking":{"type":"array","items":{"type":"string"}}},"required":["ranking"],"additionalProperties":false}`)

const voterPrompt = `You choose how an agent works on a task. Each candidate is a harness: a prompt, tools and rules around the same agent. h0 is the base; the others were each made to repair one kind of failure.
Rank all candidates by how likely the agent is to solve the task under them, most likely first. Use the measurements: success counts on validation tasks, and profiles that compare a candidate with h0 on the same tasks (wins: it solved what h0 did not; losses: the other way round).
Answer with {"ranking": ["id", ...]}, every candidate once.
` + llm.Rules

// Vote asks for a ranking. The ids are as the model gave them.
func (v *LLMVoter) Vote(ctx context.Context, view *View, t rollout.Task) ([]string, error) {
	seed := hashSeed(v.Seed, "vote", v.Label, t.ID)
	limit := 4 * len(view.IDs)
	answer, err := llm.AskJSON(ctx, v.Model, llm.Request{Schema: rankingSchema, Seed: seed, Messages: []llm.Message{
		{Role: "system", Content: voterPrompt},
		{Role: "user", Content: v.question(view, t, seed)},
	}}, func(a vote) error {
		if len(a.Ranking) == 0 || len(a.Ranking) > limit {
			return fmt.Errorf("the ranking names %d candidates of %d", len(a.Ranking), len(view.IDs))
		}
		return nil
	})
	return answer.Ranking, err
}

// vote is a ballot as a language model writes it.
type vote struct {
	Ranking []string `json:"ranking"`
}

// Bounds of what a question holds, in bytes and entries.
const (
	maxTaskText     = 4096
	maxProfileText  = 64 << 10
	profilesInVotes = 3
)

func (v *LLMVoter) question(view *View, t rollout.Task, seed int64) string {
	ids := append([]string(nil), view.IDs...)
	rand.New(rand.NewPCG(uint64(seed), 0)).Shuffle(len(ids), func(i, j int) { ids[i], ids[j] = ids[j], ids[i] })
	byID := map[string]Evidence{}
	for _, e := range view.Rule.rank(t) {
		byID[e.Harness] = e
	}
	var profiles strings.Builder
	var b strings.Builder
	fmt.Fprintf(&b, "%s\nThe candidates:\n", llm.Quote("the task", "kind: "+t.Kind+"\n"+t.Vars["question"], maxTaskText))
	for _, id := range ids {
		e := byID[id]
		fmt.Fprintf(&b, "- %s: solved %d of %d attempts at this kind of task, %d of %d at all\n", id, e.KindWins, e.KindTries, e.Wins, e.Tries)
		for i, p := range nearestOf(view.Profiles.of(id), t) {
			if i == profilesInVotes {
				break
			}
			fmt.Fprintf(&profiles, "%s %s\n", id, p.inWords())
		}
	}
	fmt.Fprintf(&b, "%s\n", llm.Quote("profiles", profiles.String(), maxProfileText))
	return b.String()
}

// Where says where an entry holds and what the harness does there.
func (e Entry) Where() string {
	behaviour := label(e.Behaviour)
	if behaviour == "" {
		behaviour = "as h0"
	}
	where := e.Condition.Kind
	if len(e.Condition.Features) > 0 {
		where += " (" + strings.Join(e.Condition.Features, ", ") + ")"
	}
	return "at " + where + ": " + behaviour
}

// inWords is an entry in one line.
func (e Entry) inWords() string {
	line := fmt.Sprintf("%s: %d wins, %d losses, %d ties", e.Where(), e.Effect.Wins, e.Effect.Losses, e.Effect.Ties)
	if e.Note != "" {
		line += "; note: " + e.Note
	}
	return line
}

// hashSeed draws a seed from names.
func hashSeed(seed int64, names ...string) int64 {
	h := sha256.New()
	binary.Write(h, binary.LittleEndian, seed)
	for _, n := range names {
		binary.Write(h, binary.LittleEndian, int64(len(n)))
		h.Write([]byte(n))
	}
	return int64(binary.LittleEndian.Uint64(h.Sum(nil)) >> 1)
}
