package trainer

import (
	"context"
	"encoding/json"
	"errors"
	"hash/fnv"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"harness-s/rollout"
	"harness-s/router"
	"harness-s/router/llm/llmtest"
	"harness-s/trainer/runfolder"
)

// voteKind is the child that trains with a router whose voters are embedded and a language model.
const (
	voteKind      = "vote"
	childEndpoint = "HARNESS_S_TEST_ENDPOINT"
)

func voteConfig(url string) Config {
	c := fakeConfig()
	c.Budget.Rollouts = 800
	c.Router.Kind, c.Router.Budget = RouterVote, 40
	c.Eval.Ends = []string{"h0", "routed"}
	if url != "" {
		c.Router.LLM.URL, c.Router.Grouper = url, "llm:grouper"
		c.Router.Voters = append(c.Router.Voters, "llm:one", "llm:two")
	}
	return c
}

// voteBuilder is the fakes with the router that the config names.
func voteBuilder(_ context.Context, c Config, from Sources) (p Parts, err error) {
	if p, _, _, err = fakeParts(c, from.Model); err != nil {
		return p, err
	}
	p.Router, p.Close, err = newRouter(c, p.Pool, from.Answers)
	return p, err
}

// oracle answers each question with a ranking drawn from the question, and now and then badly.
func oracle(t *testing.T) *llmtest.Server {
	return llmtest.NewFunc(t, func(q llmtest.Question) llmtest.Answer {
		h := fnv.New64a()
		h.Write([]byte(q.Text()))
		r := rand.New(rand.NewPCG(h.Sum64(), 0))
		if q.Model == "grouper" {
			return llmtest.JSON(map[string]any{"groups": []any{map[string]any{"lines": []int{1}, "note": "one"}}})
		}
		ids := []string{"h0", "sibling1", "sibling2", "sibling3", "nobody"}
		r.Shuffle(len(ids), func(i, j int) { ids[i], ids[j] = ids[j], ids[i] })
		if r.IntN(5) == 0 {
			return llmtest.Text("I cannot say.")
		}
		return llmtest.JSON(map[string]any{"ranking": ids})
	})
}

// A run whose router votes, language models included, ends in the same bits however often it is killed.
func TestKillAndResumeVoting(t *testing.T) {
	if testing.Short() {
		t.Skip("starts processes")
	}
	for _, url := range []string{"", oracle(t).URL} {
		t.Setenv(childEndpoint, url)
		testKill(t, voteKind, 1)
	}
}

func TestVotingRun(t *testing.T) {
	s := oracle(t)
	var mu sync.Mutex
	asked := 0
	count := llmtest.NewFunc(t, func(q llmtest.Question) llmtest.Answer {
		mu.Lock()
		defer mu.Unlock()
		asked++
		return llmtest.JSON(map[string]any{"ranking": []string{"sibling1", "sibling2", "h0"}})
	})
	g := newRig(t)
	g.cfg, g.build = voteConfig(s.URL), voteBuilder
	g.cfg.Router.Voters[len(g.cfg.Router.Voters)-1] = "llm:other@" + count.URL
	g.cfg.Router.Refresh = 3
	g.must(t)
	var total metrics = metrics{}
	for _, m := range g.lines(t) {
		for name, x := range m {
			if strings.HasPrefix(name, "router/") {
				total[name] += x
			}
		}
		if n := m["rollouts/router"]; m["step"] > 0 && n > 40 {
			t.Errorf("step %v: %v attempts to measure again, router.budget is 40", m["step"], n)
		}
	}
	for _, name := range []string{"router/ballots", "router/repaired", "router/dropped"} {
		if total[name] == 0 {
			t.Errorf("%s is 0", name)
		}
	}
	if asked == 0 {
		t.Error("the voter with an endpoint of its own was never asked")
	}
	for _, pattern := range []string{"profiles_*.json", "stats_*.json", "answers.jsonl"} {
		if files, _ := filepath.Glob(filepath.Join(g.dir, "router", pattern)); len(files) == 0 {
			t.Errorf("no router/%s", pattern)
		}
	}
	data, err := os.ReadFile(filepath.Join(g.dir, "router", "profiles_000000.json"))
	var p router.Profiles
	if err == nil {
		err = json.Unmarshal(data, &p)
	}
	if err != nil || len(p.Entries) == 0 {
		t.Errorf("profiles: %d entries, %v", len(p.Entries), err)
	}
	explained(t, g)
}

// explained: a choice that the run made is explained by the ballots it rested on.
func explained(t *testing.T, g *rig) {
	t.Helper()
	dir, err := runfolder.LastCheckpoint(g.dir)
	if err != nil {
		t.Fatal(err)
	}
	state, err := readState(dir)
	if err != nil {
		t.Fatal(err)
	}
	pool, err := fakePool()
	if err != nil {
		t.Fatal(err)
	}
	route, err := explainState(t.Context(), g.cfg, pool, state, fakeTask("val", 1))
	if err != nil {
		t.Fatal(err)
	}
	if len(route.Ranking) != len(pool.Specs) || len(route.Ballots) != len(g.cfg.Router.Voters) || route.Aggregate != router.Borda || route.Step == 0 {
		t.Errorf("explanation %+v", route)
	}
	for id, entries := range route.Profiles {
		for _, e := range entries {
			if len(e.Evidence) == 0 || e.Nearness <= 0 || e.Nearness > 1 {
				t.Errorf("profile of %s: %+v", id, e)
			}
		}
	}
	if len(route.Profiles) == 0 {
		t.Error("no profiles")
	}
}

// meeting is a router whose Prepare ends when the base rollouts of the same tasks have begun.
type meeting struct {
	Router
	asked chan []rollout.Task
}

func (m *meeting) Prepare(_ context.Context, tasks []rollout.Task) error {
	select {
	case m.asked <- tasks:
		return nil
	case <-time.After(time.Minute):
		return errors.New("no rollouts ran while the router prepared")
	}
}

// The ballots for a step's tasks are asked for while its base rollouts run: each of the two waits for the other here.
func TestVotesAreAskedForBesideTheRollouts(t *testing.T) {
	g := newRig(t)
	g.cfg.Rescue.Mode, g.cfg.Eval.Ends = ModeRouted, []string{"h0"} // evaluations of routed prepare before they roll out
	asked, steps := make(chan []rollout.Task), 0
	g.build = func(_ context.Context, c Config, from Sources) (Parts, error) {
		p, _, w, err := fakeParts(c, from.Model)
		p.Router = &meeting{p.Router, asked}
		w.before = func(jobs []rollout.Job) error {
			if jobs[0].Phase != "train" || jobs[0].Attempt != 0 { // a rescue's attempts count on from n
				return nil
			}
			steps++
			select {
			case tasks := <-asked:
				for i, task := range tasks {
					if id := jobs[i*c.Rollout.N].Task.ID; id != task.ID {
						t.Errorf("prepared %s, and %s is at work", task.ID, id)
					}
				}
				return nil
			case <-time.After(time.Minute):
				return errors.New("the router was not asked to prepare")
			}
		}
		return p, err
	}
	g.must(t)
	if steps < 2 {
		t.Errorf("%d steps", steps)
	}
}

// Windows of a budget follow each other until every task had its turn.
func TestAnchorTasks(t *testing.T) {
	g := newRig(t)
	g.cfg.Router.Kind, g.cfg.Router.Attempts = RouterVote, 1
	parts, err := voteBuilder(t.Context(), g.cfg, Sources{})
	if err != nil {
		t.Fatal(err)
	}
	r := &run{cfg: g.cfg, parts: parts, pool: parts.Pool}
	r.cfg.Router.Budget = 2 * len(parts.Pool.Specs) // 2 of 8 tasks
	window := func(anchors int) (ids []string) {
		s := &stepRun{run: r}
		s.next.Anchors = anchors
		for _, t := range s.anchorTasks() {
			ids = append(ids, t.ID)
		}
		return ids
	}
	if n := len(window(0)); n != 8 {
		t.Errorf("the first measurement takes %d tasks of 8", n)
	}
	seen := map[string]bool{}
	for i := 1; i <= 4; i++ {
		ids := window(i)
		if len(ids) != 2 || !reflect.DeepEqual(ids, window(i)) {
			t.Errorf("window %d: %v", i, ids)
		}
		for _, id := range ids {
			seen[id] = true
		}
	}
	if len(seen) != 8 {
		t.Errorf("four windows of two tasks took %d different ones", len(seen))
	}
	r.cfg.Router.Budget = 1
	if err := r.checkAnchor(); err == nil || !strings.Contains(err.Error(), "router.budget") {
		t.Errorf("a budget of one rollout: %v", err)
	}
}

func TestRouterConfig(t *testing.T) {
	for _, c := range []struct {
		key    string
		change func(*RouterConfig)
	}{
		{"router.kind", func(c *RouterConfig) { c.Kind = "best" }},
		{"router.aggregate", func(c *RouterConfig) { c.Aggregate = "plurality" }},
		{"router.profiles", func(c *RouterConfig) { c.Profiles = "" }},
		{"router.quorum", func(c *RouterConfig) { c.Quorum = 5 }},
		{"router.voters", func(c *RouterConfig) { c.Voters = nil }},
		{"router.voters", func(c *RouterConfig) { c.Voters = []string{"rule", "rule"} }},
		{"router.voters", func(c *RouterConfig) { c.Voters = []string{"rule", "oracle"} }},
		{"router.llm.url", func(c *RouterConfig) { c.Voters = []string{"rule", "llm:m"} }},
		{"router.grouper", func(c *RouterConfig) { c.Grouper = "llm:m" }},
		{"router.llm.temperature", func(c *RouterConfig) { c.LLM.Temperature = -1 }},
		{"router.llm.timeout_s", func(c *RouterConfig) { c.LLM.TimeoutS = 0 }},
	} {
		cfg := Default()
		c.change(&cfg.Router)
		if err := cfg.Validate(); err == nil || !strings.Contains(err.Error(), c.key) {
			t.Errorf("%s: error %v", c.key, err)
		}
	}
	cfg := Default()
	cfg.Router.Voters = []string{"rule", "llm:org/m@https://host:8/v1", "llm:m"}
	cfg.Router.LLM.URL = "http://127.0.0.1:1/v1"
	if err := cfg.Validate(); err != nil {
		t.Error(err)
	}
	if model, url, _ := modelOf(cfg.Router.Voters[1]); model != "org/m" || url != "https://host:8/v1" {
		t.Errorf("model %q, url %q", model, url)
	}
}
