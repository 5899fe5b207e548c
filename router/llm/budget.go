package llm

import (
	"errors"
	"fmt"
	"sync"
)

// ErrBudget says that a request was not sent because it could have gone over the budget.
var ErrBudget = errors.New("the budget of requests to language models is used up")

// Budget bounds what several clients may spend together. A zero limit is none. Set the limits before the first request; the
// methods may be called from any goroutine.
//
// A request is sent only when the most it can cost is left: its prompt as estimated from above, and a reply of full length.
// A server that bills more than that for one request can still pass the limit by the difference.
type Budget struct {
	Calls  int // requests
	Tokens int // prompt and reply tokens as the servers count them

	mu            sync.Mutex
	calls, tokens int // spent
	inFlight      int // requests sent and not yet settled
	reserved      int // tokens that these may cost
}

// Spent is what was spent so far, without requests in flight.
func (b *Budget) Spent() (calls, tokens int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.calls, b.tokens
}

// Charge counts what was spent elsewhere, such as by an earlier process of the same run.
func (b *Budget) Charge(calls, tokens int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.calls += calls
	b.tokens += tokens
}

// reserve asks for one request of at most so many tokens.
func (b *Budget) reserve(tokens int) error {
	if b == nil {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.Calls > 0 && b.calls+b.inFlight >= b.Calls {
		return fmt.Errorf("%w: %d of %d requests are made", ErrBudget, b.calls+b.inFlight, b.Calls)
	}
	if have := b.tokens + b.reserved; b.Tokens > 0 && have+tokens > b.Tokens {
		return fmt.Errorf("%w: %d of %d tokens are spent, and this request may take %d", ErrBudget, have, b.Tokens, tokens)
	}
	b.inFlight++
	b.reserved += tokens
	return nil
}

// settle ends a reserved request that cost so many tokens.
func (b *Budget) settle(reserved, cost int) {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.inFlight--
	b.reserved -= reserved
	b.calls++
	b.tokens += cost
}

// Counters say how asking went.
type Counters struct {
	Calls        int `json:"calls"`         // HTTP requests sent
	Retries      int `json:"retries"`       // of these, sent again after a fault of the server or the network
	Fallbacks    int `json:"fallbacks"`     // of these, sent again without a parameter that the server does not take
	Repaired     int `json:"repaired"`      // questions asked again because the answer could not be used
	Failed       int `json:"failed"`        // questions that ended without a usable answer, the budget's end included
	PromptTokens int `json:"prompt_tokens"` // counted by the server, or estimated from above
	ReplyTokens  int `json:"reply_tokens"`
}

// estimate is a number of tokens that text of so many bytes hardly reaches: two bytes a token, where English takes about four
// and other scripts about three.
func estimate(bytes int) int { return (bytes + 1) / 2 }

// messageTokens is what a chat template adds to a message, from above.
const messageTokens = 16

func (r Request) promptTokens() int {
	n := messageTokens + estimate(len(r.Schema))
	for _, m := range r.Messages {
		n += messageTokens + estimate(len(m.Content))
	}
	return n
}
