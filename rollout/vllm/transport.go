package vllm

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
)

// roundTrip sends one request, once: a POST is never sent again by the transport itself, because that would hide
// a generation run twice. The reply's body is read whole, within maxReply bytes.
func (c *Client) roundTrip(ctx context.Context, via *http.Client, method, url string, body []byte, header http.Header) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.GetBody = nil
	for k, v := range header {
		req.Header[k] = v
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	} else {
		req.Body, req.ContentLength = http.NoBody, 0
	}
	if c.opt.APIKey != "" {
		req.Header.Set("Authorization", "Bearer "+c.opt.APIKey)
	}
	resp, err := via.Do(req)
	if err != nil {
		return nil, lost(ctx, method, url, err)
	}
	defer resp.Body.Close()
	reply, err := io.ReadAll(io.LimitReader(resp.Body, maxReply+1))
	if err != nil {
		return nil, lost(ctx, method, url, err)
	}
	if len(reply) > maxReply {
		return nil, serverError("%s %s: a reply of more than %d bytes", method, url, maxReply)
	}
	if resp.StatusCode != http.StatusOK {
		return nil, statusError(method, url, resp, reply)
	}
	return reply, nil
}

// lost is a call that brought no whole answer. When ctx has ended that is the reason; else the server is to blame.
func lost(ctx context.Context, method, url string, err error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("%s %s: %w", method, url, context.Cause(ctx))
	}
	return &lostError{fmt.Errorf("%s %s: %w", method, url, err)}
}

// control makes an admin call and decodes the answer into out, if not nil.
func (c *Client) control(ctx context.Context, s *server, method, path string, body, out any) error {
	ctx, cancel := context.WithTimeout(ctx, c.opt.AdminTimeout)
	defer cancel()
	var raw []byte
	if body != nil {
		var err error
		if raw, err = json.Marshal(body); err != nil {
			return err
		}
	}
	reply, err := c.roundTrip(ctx, c.admin, method, s.base+path, raw, nil)
	if err != nil {
		return err
	}
	if out == nil {
		return nil
	}
	if err := json.Unmarshal(reply, out); err != nil {
		return serverError("%s %s: the answer is not the JSON expected: %w", method, s.base+path, err)
	}
	return nil
}
