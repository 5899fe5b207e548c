package trainer

import (
	"fmt"
	"time"

	"harness-s/model/chat"
	"harness-s/router/evolve"
	"harness-s/router/evolve/sqlrepair"
	"harness-s/router/llm"
)

// makers are who analyses and edits, and what counts their requests.
type makers struct {
	analyst evolve.Analyst
	editor  evolve.Editor
	meter   evolve.Meter // nil: they make none
	close   func()
}

// newMakers wires the makers that a config names. Analyst and editor that are language models share one endpoint and budget.
// tools are the environment's.
func newMakers(c EvolveConfig, seed int64, tools []chat.Tool) (makers, error) {
	m := makers{analyst: sqlrepair.Analyst{}, editor: sqlrepair.Editor{}, close: func() {}}
	if c.Analyst != MakerLLM && c.Editor != MakerLLM {
		return m, nil
	}
	budget := &llm.Budget{Calls: c.Budget.Calls, Tokens: c.Budget.Tokens}
	l := c.LLM
	client, err := llm.New(llm.Options{
		URL: l.URL, Model: l.Model, KeyVariable: l.KeyVariable, Timeout: time.Duration(l.TimeoutS) * time.Second, Retries: l.Retries,
		MaxTokens: l.MaxTokens, Temperature: l.Temperature, Concurrency: l.Concurrency, Budget: budget,
	})
	if err != nil {
		return makers{}, fmt.Errorf("evolve.llm: %w", err)
	}
	m.meter, m.close = budget, client.Close
	if c.Analyst == MakerLLM {
		m.analyst = &evolve.LLMAnalyst{Client: client, Seed: seed}
	}
	if c.Editor == MakerLLM {
		m.editor = &evolve.LLMEditor{Client: client, Seed: seed, Tools: tools}
	}
	return m, nil
}
