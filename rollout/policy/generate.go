package policy

import (
	"encoding/json"
	"fmt"
	"net/http"
	"time"
)

type generateParams struct {
	sampling
	Logprobs *int `json:"logprobs"`
}

type generateBody struct {
	Model     string          `json:"model"`
	TokenIDs  json.RawMessage `json:"token_ids"`
	Sampling  *generateParams `json:"sampling_params"`
	Stream    bool            `json:"stream"`
	ReturnIDs bool            `json:"return_token_ids"`
	RequestID string          `json:"request_id"`
	CacheSalt *string         `json:"cache_salt"`
	Mode      string          `json:"output_mode"`
	Features  json.RawMessage `json:"features"`
}

// generate is /inference/v1/generate: token ids in, token ids out.
func (s *Server) generate(w http.ResponseWriter, r *http.Request) error {
	var body generateBody
	if err := decodeBody(r.Body, &body); err != nil {
		return err
	}
	req, err := s.generateRequest(&body)
	if err != nil {
		return err
	}
	req.ID = "generate-tokens-" + requestID(r, body.RequestID)
	var scores [][]float32
	if body.Sampling.PromptLogprobs != nil {
		one, err := s.eng.Score(r.Context(), req.Prompt)
		if err != nil {
			return err
		}
		scores = [][]float32{one}
	}
	out, e := s.eng.Generate(r.Context(), req)
	if e != nil {
		return e
	}
	buf := buffers.Get().(*[]byte)
	defer putBuffer(buf)
	*buf = s.appendGenerate((*buf)[:0], &body, &req, out, scores)
	writeRaw(w, http.StatusOK, *buf)
	return nil
}

// generateRequest checks the body.
func (s *Server) generateRequest(body *generateBody) (req Request, err *apiError) {
	if err = s.checkModel(body.Model); err != nil {
		return req, err
	}
	switch {
	case body.TokenIDs == nil:
		return req, validation("missing", "body.token_ids", "Field required", "")
	case body.Sampling == nil:
		return req, validation("missing", "body.sampling_params", "Field required", "")
	case body.Stream:
		return req, unsupported("stream")
	case body.Mode != "" && body.Mode != "tokens":
		return req, unsupported("output_mode")
	case len(body.Features) > 0 && string(body.Features) != "null":
		return req, unsupported("features")
	}
	if req.Prompt, err = readIDs(body.TokenIDs, "body.token_ids"); err != nil {
		return req, err
	}
	if len(req.Prompt) == 0 {
		return req, validation("too_short", "body.token_ids", "List should have at least 1 item after validation, not 0", "<list of 0 items>")
	}
	if n, limit := len(req.Prompt), s.eng.opt.MaxModelLen; n >= limit {
		return req, badValue("", "The decoder prompt (length %d) is longer than the maximum model length of %d. Make sure that `max_model_len` is no smaller than the number of text tokens.", n, limit)
	}
	if err = s.checkPrompt(req.Prompt); err != nil {
		return req, err
	}
	if req.Params, err = s.params(&body.Sampling.sampling); err != nil {
		return req, err
	}
	if k := body.Sampling.Logprobs; k != nil {
		if err = topLogprobs("logprobs", *k); err != nil {
			return req, err
		}
		req.Params.TopLogprobs = *k
	}
	req.Params.MaxTokens = orElse(body.Sampling.MaxTokens, s.eng.opt.MaxModelLen)
	if m := req.Params.MaxTokens; m < 1 {
		return req, badParam("max_tokens", fmt.Sprint(m), "max_tokens must be at least 1, got %d.", m)
	}
	return req, checkSalt(body.CacheSalt)
}

func (s *Server) appendGenerate(b []byte, body *generateBody, req *Request, out []Completion, scores [][]float32) []byte {
	use := usage{prompt: len(req.Prompt)}
	for i := range out {
		use.add(&out[i])
	}
	b = append(b, `{"request_id":`...)
	b = appendString(b, req.ID)
	b = append(b, `,"model":`...)
	b = appendString(b, s.opt.Model)
	b = append(b, `,"created":`...)
	b = appendInt(b, time.Now().Unix())
	b = append(b, `,"usage":`...)
	b = use.append(b, true)
	b = append(b, `,"prompt_logprobs":`...)
	b = s.promptLogprobs(b, req.Prompt, scores, 0)
	b = append(b, `,"prompt_token_id_logprobs":null,"prompt_token_ids":`...)
	b = appendIDsIf(b, body.ReturnIDs, req.Prompt)
	b = append(b, `,"mm_placeholders":null,"metrics":null,"kv_transfer_params":null,"ec_transfer_params":null,"output_mode":"tokens","choices":[`...)
	for i := range out {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendGenerated(b, i, &out[i], body.Sampling.Logprobs != nil)
	}
	return append(b, "]}"...)
}

// appendGenerated writes one choice with its weight versions and, if asked for, log-probs by id.
func appendGenerated(b []byte, i int, c *Completion, logprobs bool) []byte {
	b = append(b, `{"index":`...)
	b = appendInt(b, i)
	b = appendFinish(b, c.Finish, c)
	b = append(b, `,"token_ids":`...)
	b = appendInts(b, c.Tokens)
	b = append(b, `,"routed_experts":null,"sampling_mask":null,"weight_versions":[`...)
	for k, v := range c.Versions {
		if k > 0 {
			b = append(b, ',')
		}
		b = append(b, `{"version":`...)
		b = appendString(b, v.Version)
		b = append(b, `,"start":`...)
		b = appendInt(b, v.Start)
		b = append(b, `,"end":`...)
		b = appendInt(b, v.End)
		b = append(b, '}')
	}
	b = append(b, `],"logprobs":`...)
	if !logprobs {
		return append(b, "null}"...)
	}
	b = append(b, `{"content":[`...)
	for k, id := range c.Tokens {
		if k > 0 {
			b = append(b, ',')
		}
		var top []Top
		if c.Top != nil {
			top = c.Top[k]
		}
		b = appendTokenLogprob(b, id, c.Logprobs[k], top)
	}
	return append(b, "]}}"...)
}

// appendTokenLogprob writes the sampled token, then the most likely others in order. rank is null where the
// sampled token is not among the reported ones.
func appendTokenLogprob(b []byte, id int32, lp float32, top []Top) []byte {
	rank := 0
	for r, t := range top {
		if t.ID == id {
			rank = r + 1
		}
	}
	b = appendRanked(b, id, lp, rank)
	b = append(b, `,"top_logprobs":[`...)
	b = append(appendRanked(b, id, lp, rank), '}')
	for r, t := range top {
		if t.ID != id {
			b = append(b, ',')
			b = append(appendRanked(b, t.ID, t.Logprob, r+1), '}')
		}
	}
	return append(b, "]}"...)
}

// appendRanked leaves its object open.
func appendRanked(b []byte, id int32, lp float32, rank int) []byte {
	b = append(b, `{"token_id":`...)
	b = appendInt(b, id)
	b = append(b, `,"logprob":`...)
	b = appendFloat(b, lp)
	b = append(b, `,"rank":`...)
	if rank == 0 {
		return append(b, "null"...)
	}
	return appendInt(b, rank)
}
