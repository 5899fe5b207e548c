package llm

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"
	"unicode"
)

// fault is what went wrong with one request.
type fault struct {
	text       string
	status     int           // of HTTP; 0: no whole answer came
	again      bool          // a fresh try may go better
	retryAfter time.Duration // the server asked for so long
}

func (f *fault) Error() string { return f.text }

// maxText bounds what an error tells of a server's words.
const maxText = 500

// maxBody bounds a reply: far more than so many tokens can be.
func (c *Client) maxBody() int64 { return 1<<20 + 64*int64(c.opt.MaxTokens) }

// exchange sends one HTTP request and reads its answer. cost is what it may have cost, also when it failed: a reply that was
// lost on its way was generated, and is counted in full.
func (c *Client) exchange(ctx context.Context, r Request, d dialect) (reply Reply, cost Reply, err error) {
	body, err := c.body(r, d)
	if err != nil {
		return Reply{}, Reply{}, fmt.Errorf("write the request: %w", err)
	}
	within, cancel := context.WithTimeout(ctx, c.opt.Timeout)
	defer cancel()
	resp, data, sent, err := c.post(within, body)
	lost := Reply{PromptTokens: r.promptTokens(), ReplyTokens: c.opt.MaxTokens}
	switch {
	case err != nil && !sent:
		return Reply{}, Reply{}, c.lost(ctx, within, err)
	case err != nil:
		return Reply{}, lost, c.lost(ctx, within, err)
	case resp.StatusCode != http.StatusOK:
		return Reply{}, Reply{}, c.refused(resp, data)
	}
	reply, err = c.read(resp, data, r)
	if err != nil {
		return Reply{}, lost, err
	}
	return reply, reply, nil
}

// post returns the response and its whole body. sent is false when no connection was made.
func (c *Client) post(ctx context.Context, body []byte) (resp *http.Response, data []byte, sent bool, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.opt.URL+"/chat/completions", bytes.NewReader(body))
	if err != nil {
		return nil, nil, false, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json")
	if c.key != "" {
		req.Header.Set("Authorization", "Bearer "+c.key)
	}
	resp, err = c.http.Do(req)
	if err != nil {
		return nil, nil, !notDialled(err), err
	}
	defer resp.Body.Close()
	data, err = io.ReadAll(io.LimitReader(resp.Body, c.maxBody()+1))
	if err == nil && int64(len(data)) > c.maxBody() {
		err = fmt.Errorf("a reply of more than %d bytes", c.maxBody())
	}
	return resp, data, true, err
}

// notDialled says that no connection came about.
func notDialled(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "dial"
}

// lost is a request that brought no whole answer.
func (c *Client) lost(ctx, within context.Context, err error) error {
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case within.Err() != nil:
		return &fault{text: fmt.Sprintf("no whole reply within %v", c.opt.Timeout), again: true}
	}
	return &fault{text: c.clean("no whole reply: " + err.Error()), again: true}
}

// refused is an answer other than 200.
func (c *Client) refused(resp *http.Response, data []byte) *fault {
	f := &fault{status: resp.StatusCode, retryAfter: retryAfter(resp.Header, time.Now())}
	switch s := resp.StatusCode; {
	case s == http.StatusTooManyRequests, s == http.StatusRequestTimeout, s >= 500 && s != http.StatusNotImplemented:
		f.again = true
	}
	says := string(data)
	if s := resp.StatusCode; s >= 300 && s < 400 {
		says = "it redirects to " + resp.Header.Get("Location") + "; redirects are not followed: write the final URL"
	}
	f.text = c.clean(fmt.Sprintf("%d %s: %s", f.status, http.StatusText(f.status), says))
	return f
}

// clean makes one short line of a text that a server may have written, without the key.
func (c *Client) clean(s string) string {
	if c.key != "" {
		s = strings.ReplaceAll(s, c.key, "[key]")
	}
	return line(s, maxText)
}

// line is one line of at most max bytes.
func line(s string, max int) string {
	cut := len(s) > 4*max
	if cut {
		s = s[:4*max]
	}
	s = strings.Join(strings.FieldsFunc(strings.ToValidUTF8(s, "?"), func(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) }), " ")
	if len(s) > max || cut {
		s = strings.ToValidUTF8(s[:min(len(s), max)], "") + "..."
	}
	return s
}

// chatReply is what is read of an answer.
type chatReply struct {
	Choices []struct {
		Message struct {
			Content *string `json:"content"`
			Refusal *string `json:"refusal"`
		} `json:"message"`
		FinishReason string `json:"finish_reason"`
	} `json:"choices"`
	Usage *struct {
		PromptTokens     int `json:"prompt_tokens"`
		CompletionTokens int `json:"completion_tokens"`
	} `json:"usage"`
}

// maxUsage is the largest count of tokens that is believed.
const maxUsage = 1 << 24

// read takes the answer apart. What is missing there is a fault of the server.
func (c *Client) read(resp *http.Response, data []byte, r Request) (Reply, error) {
	var a chatReply
	if err := json.Unmarshal(data, &a); err != nil {
		return Reply{}, &fault{again: true, status: resp.StatusCode, text: c.clean(fmt.Sprintf("the reply (%s) is not the JSON of a chat completion: %v; it begins: %.80q",
			line(resp.Header.Get("Content-Type"), 80), err, data))}
	}
	if len(a.Choices) == 0 {
		return Reply{}, &fault{again: true, status: resp.StatusCode, text: "the reply has no choices"}
	}
	choice := a.Choices[0]
	out := Reply{Cut: choice.FinishReason == "length", PromptTokens: r.promptTokens()}
	switch m := choice.Message; {
	case m.Refusal != nil && *m.Refusal != "":
		out.Text, out.Refused = *m.Refusal, true
	case m.Content != nil:
		out.Text = *m.Content
	}
	out.ReplyTokens = max(estimate(len(out.Text)), 1)
	if out.Cut || out.Text == "" {
		out.ReplyTokens = c.opt.MaxTokens // it may have thought at length without showing it
	}
	if u := a.Usage; u != nil && u.PromptTokens > 0 && u.CompletionTokens >= 0 && u.PromptTokens < maxUsage && u.CompletionTokens < maxUsage {
		out.PromptTokens, out.ReplyTokens = u.PromptTokens, u.CompletionTokens
	}
	return out, nil
}
