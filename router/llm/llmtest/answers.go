package llmtest

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
)

// Text is a good HTTP answer whose message says s.
func Text(s string) Answer {
	return message(map[string]any{"role": "assistant", "content": s}, "stop", map[string]any{"prompt_tokens": 100, "completion_tokens": 20})
}

// JSON is a good answer: v as JSON.
func JSON(v any) Answer {
	raw, err := json.Marshal(v)
	if err != nil {
		panic("llmtest: " + err.Error())
	}
	return Text(string(raw))
}

// NoUsage says s without counting tokens.
func NoUsage(s string) Answer {
	return message(map[string]any{"role": "assistant", "content": s}, "stop", nil)
}

// Usage says s and claims counts of tokens.
func Usage(s string, prompt, reply int) Answer {
	return message(map[string]any{"role": "assistant", "content": s}, "stop", map[string]any{"prompt_tokens": prompt, "completion_tokens": reply})
}

// TooLong ends at the limit of tokens.
func TooLong(s string) Answer {
	return message(map[string]any{"role": "assistant", "content": s}, "length", nil)
}

// Refusal is the refusal field of a message.
func Refusal(s string) Answer {
	return message(map[string]any{"role": "assistant", "content": nil, "refusal": s}, "stop", nil)
}

func message(m map[string]any, finish string, usage any) Answer {
	return func(w http.ResponseWriter, _ *http.Request, q Question) {
		send(w, map[string]any{
			"id": "chatcmpl-" + strconv.Itoa(q.N), "object": "chat.completion", "model": q.Model,
			"choices": []any{map[string]any{"index": 0, "message": m, "finish_reason": finish}}, "usage": usage,
		})
	}
}

func send(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	json.NewEncoder(w).Encode(v)
}

// EmptyChoices has no message.
func EmptyChoices() Answer {
	return func(w http.ResponseWriter, _ *http.Request, _ Question) { send(w, map[string]any{"choices": []any{}}) }
}

// Status is an error with OpenAI's envelope.
func Status(code int, text string) Answer {
	return func(w http.ResponseWriter, _ *http.Request, _ Question) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code)
		fmt.Fprintf(w, `{"error":{"message":%q,"type":"error","code":%d}}`, text, code)
	}
}

// RetryAfter is 429 or 503 that says when to come back.
func RetryAfter(code int, after string) Answer {
	return func(w http.ResponseWriter, r *http.Request, q Question) {
		w.Header().Set("Retry-After", after)
		Status(code, "rate limit")(w, r, q)
	}
}

// Stall accepts the request and never answers. started says that headers and a part of the body come first.
func Stall(started bool) Answer {
	return func(w http.ResponseWriter, r *http.Request, _ Question) {
		if started {
			fmt.Fprint(w, `{"choices":`)
			http.NewResponseController(w).Flush()
		}
		<-r.Context().Done()
	}
}

// Cut ends the connection in the middle of the body.
func Cut() Answer {
	return func(w http.ResponseWriter, _ *http.Request, _ Question) {
		w.Header().Set("Content-Length", "1000")
		fmt.Fprint(w, `{"choices":[{"message":{"content":"`)
		http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}
}

// Endless writes a body without end.
func Endless() Answer {
	return func(w http.ResponseWriter, r *http.Request, _ Question) {
		fmt.Fprint(w, `{"choices":[{"message":{"content":"`)
		block := strings.Repeat("x", 64<<10)
		for r.Context().Err() == nil {
			if _, err := fmt.Fprint(w, block); err != nil {
				return
			}
		}
	}
}

// HTML is a page where JSON was asked for.
func HTML() Answer {
	return func(w http.ResponseWriter, _ *http.Request, _ Question) {
		w.Header().Set("Content-Type", "text/html")
		fmt.Fprint(w, "<html><body>Please log in.</body></html>")
	}
}

// Redirect sends the client elsewhere.
func Redirect(to string) Answer {
	return func(w http.ResponseWriter, _ *http.Request, _ Question) {
		w.Header().Set("Location", to)
		w.WriteHeader(http.StatusTemporaryRedirect)
	}
}

// BadTexts are texts that no strict reader of a JSON object takes, by name. good is an object that it does take.
func BadTexts(good string) map[string]string {
	return map[string]string{
		"empty":          "",
		"malformed":      strings.TrimSuffix(strings.TrimSpace(good), "}"),
		"prose around":   "Sure! Here is the JSON you asked for:\n" + good + "\nLet me know if you need more.",
		"prose alone":    "I would look at the schema first.",
		"refusal":        "I'm sorry, but I can't help with that.",
		"two values":     good + "\n" + good,
		"unclosed fence": "```json\n" + good,
		"unclosed think": "<think>\nLet me see. " + good,
		"repeated key":   `{"a":1,"a":2}`,
		"deep":           strings.Repeat(`{"a":[`, 5000) + strings.Repeat(`]}`, 5000),
		"huge number":    `{"a":1e99999}`,
		"long number":    `{"a":` + strings.Repeat("9", 5000) + `}`,
		"not an object":  `"yes"`,
		"null":           "null",
		"lone surrogate": "{\"a\":\"\\ud800\"}",
		"unknown key":    `{"ignore_previous_instructions":true}`,
	}
}

// BadAnswers are HTTP answers that no client may take for one, by name. A client with a timeout ends each.
func BadAnswers() map[string]Answer {
	return map[string]Answer{
		"empty choices": EmptyChoices(),
		"429":           RetryAfter(http.StatusTooManyRequests, "1"),
		"500":           Status(http.StatusInternalServerError, "out of memory"),
		"503":           RetryAfter(http.StatusServiceUnavailable, "Wed, 21 Oct 2015 07:28:00 GMT"),
		"400":           Status(http.StatusBadRequest, "the prompt is too long"),
		"401":           Status(http.StatusUnauthorized, "bad key"),
		"stall":         Stall(false),
		"stalled body":  Stall(true),
		"cut":           Cut(),
		"endless":       Endless(),
		"html":          HTML(),
		"redirect":      Redirect("http://127.0.0.1:1/v1/chat/completions"),
	}
}
