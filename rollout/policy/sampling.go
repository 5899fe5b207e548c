package policy

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strconv"
	"strings"
)

const (
	maxLogprobs   = 20   // as vLLM's --max-logprobs
	maxStops      = 64   // stop strings
	maxStopLen    = 1024 // bytes of one
	minTemp       = 0.01 // below it, and above 0, vLLM samples at 0.01
	maxSaltLen    = 1024
	maxPromptList = 256
)

// sampling holds the sampling fields of every generation request. nil = absent or null.
type sampling struct {
	N                 *int       `json:"n"`
	Temperature       *float64   `json:"temperature"`
	TopP              *float64   `json:"top_p"`
	TopK              *int       `json:"top_k"`
	MinP              *float64   `json:"min_p"`
	PresencePenalty   *float64   `json:"presence_penalty"`
	FrequencyPenalty  *float64   `json:"frequency_penalty"`
	RepetitionPenalty *float64   `json:"repetition_penalty"`
	Seed              *int64     `json:"seed"`
	Stop              stringList `json:"stop"`
	StopTokenIDs      []*int32   `json:"stop_token_ids"`
	MaxTokens         *int       `json:"max_tokens"`
	MinTokens         int        `json:"min_tokens"`
	IgnoreEOS         bool       `json:"ignore_eos"`
	SkipSpecial       *bool      `json:"skip_special_tokens"`
	IncludeStop       bool       `json:"include_stop_str_in_output"`
	PromptLogprobs    *int       `json:"prompt_logprobs"`
	AllowedTokenIDs   []*int32   `json:"allowed_token_ids"`

	// Refused unless they say nothing.
	LogitBias         map[string]float64 `json:"logit_bias"`
	BadWords          []string           `json:"bad_words"`
	StructuredOutputs json.RawMessage    `json:"structured_outputs"`
	ResponseFormat    *struct {
		Type string `json:"type"`
	} `json:"response_format"`
	LogprobTokenIDs []int32 `json:"logprob_token_ids"`
	TruncatePrompt  *int    `json:"truncate_prompt_tokens"`
	UseBeamSearch   bool    `json:"use_beam_search"`
	ThinkingBudget  *int    `json:"thinking_token_budget"`
}

// stringList is a string or a list of strings.
type stringList []string

func (l *stringList) UnmarshalJSON(raw []byte) error {
	if raw[0] == '"' {
		var s string
		if err := json.Unmarshal(raw, &s); err != nil {
			return err
		}
		*l = stringList{s}
		return nil
	}
	return json.Unmarshal(raw, (*[]string)(l))
}

func (s *sampling) skipSpecial() bool { return s.SkipSpecial == nil || *s.SkipSpecial }

// params checks the fields and turns them into the engine's, all but the token budget.
func (s *sampling) params(vocab, maxN int) (Params, *apiError) {
	if err := s.refuse(); err != nil {
		return Params{}, err
	}
	p := Params{N: orElse(s.N, 1), Seed: rand.Uint64(), Temperature: 1, TopP: 1, TopK: orElse(s.TopK, 0),
		MinTokens: s.MinTokens, Stop: s.Stop, SkipSpecial: s.skipSpecial(), IgnoreEOS: s.IgnoreEOS}
	var err *apiError
	if p.StopIDs, err = idList(s.StopTokenIDs, "stop_token_ids"); err != nil {
		return p, err
	}
	if s.Seed != nil {
		p.Seed = uint64(*s.Seed)
	}
	if t := orElse(s.Temperature, 1); t < 0 {
		return p, badParam("temperature", pyFloat(t), "temperature must be non-negative, got %s.", pyFloat(t))
	} else if p.Temperature = float32(t); t > 0 && t < minTemp {
		p.Temperature = minTemp
	}
	if v := orElse(s.TopP, 1); v <= 0 || v > 1 {
		return p, badParam("top_p", pyFloat(v), "top_p must be in (0, 1], got %s.", pyFloat(v))
	} else {
		p.TopP = float32(v)
	}
	switch {
	case p.TopK < -1:
		return p, badParam("top_k", strconv.Itoa(p.TopK), "top_k must be 0 (disable), or at least 1, got %d.", p.TopK)
	case p.N < 1:
		return p, badParam("n", strconv.Itoa(p.N), "n must be at least 1, got %d.", p.N)
	case p.N > maxN:
		return p, badValue("", "sampling_params.n must be at most the server's max_num_seqs (%d), got %d.", maxN, p.N)
	case p.MinTokens < 0:
		return p, badParam("min_tokens", strconv.Itoa(p.MinTokens), "min_tokens must be greater than or equal to 0, got %d.", p.MinTokens)
	}
	if err := checkStops(s.Stop); err != nil {
		return p, err
	}
	return p, s.allowed(&p, vocab)
}

func orElse[T any](p *T, d T) T {
	if p == nil {
		return d
	}
	return *p
}

// refuse answers fields that would change the distribution and are not implemented.
func (s *sampling) refuse() *apiError {
	differs := func(p *float64, neutral float64) bool { return p != nil && *p != neutral }
	switch {
	case differs(s.MinP, 0):
		return unsupported("min_p")
	case differs(s.PresencePenalty, 0):
		return unsupported("presence_penalty")
	case differs(s.FrequencyPenalty, 0):
		return unsupported("frequency_penalty")
	case differs(s.RepetitionPenalty, 1):
		return unsupported("repetition_penalty")
	case len(s.LogitBias) > 0:
		return unsupported("logit_bias")
	case len(s.BadWords) > 0:
		return unsupported("bad_words")
	case len(s.StructuredOutputs) > 0 && string(s.StructuredOutputs) != "null":
		return unsupported("structured_outputs")
	case s.ResponseFormat != nil && s.ResponseFormat.Type != "text":
		return unsupported("response_format")
	case len(s.LogprobTokenIDs) > 0:
		return unsupported("logprob_token_ids")
	case s.TruncatePrompt != nil:
		return unsupported("truncate_prompt_tokens")
	case s.UseBeamSearch:
		return unsupported("use_beam_search")
	case s.ThinkingBudget != nil:
		return unsupported("thinking_token_budget")
	case s.PromptLogprobs != nil && *s.PromptLogprobs != 0:
		return badValue("prompt_logprobs", "prompt_logprobs must be 0 (the prompt's own tokens) on this server, got %d", *s.PromptLogprobs)
	}
	return nil
}

// idList refuses nulls, which would be token 0 as plain numbers. A list that is absent stays nil.
func idList(list []*int32, param string) ([]int32, *apiError) {
	if list == nil {
		return nil, nil
	}
	ids := make([]int32, len(list))
	for i, id := range list {
		if id == nil {
			return nil, validation("int_type", fmt.Sprintf("body.%s.%d", param, i), "Input should be a valid integer", "null")
		}
		ids[i] = *id
	}
	return ids, nil
}

func checkStops(stops []string) *apiError {
	if len(stops) > maxStops {
		return badValue("stop", "at most %d stop strings, got %d", maxStops, len(stops))
	}
	for _, t := range stops {
		if t == "" {
			return badValue("stop", "stop cannot contain an empty string.")
		}
		if len(t) > maxStopLen {
			return badValue("stop", "a stop string may have at most %d bytes, got %d", maxStopLen, len(t))
		}
	}
	return nil
}

// allowed takes allowed_token_ids and checks every id list against the vocabulary.
func (s *sampling) allowed(p *Params, vocab int) *apiError {
	if s.AllowedTokenIDs != nil && len(s.AllowedTokenIDs) == 0 {
		return badValue("allowed_token_ids", "allowed_token_ids is not None and empty!")
	}
	ids, err := idList(s.AllowedTokenIDs, "allowed_token_ids")
	if err != nil {
		return err
	}
	for _, id := range ids {
		if id < 0 || int(id) >= vocab {
			return badValue("allowed_token_ids", "allowed_token_ids contains out-of-vocab token id %d", id)
		}
	}
	p.Allowed = ids
	return nil
}

// topLogprobs checks a logprobs field: 0 = the sampled token alone.
func topLogprobs(field string, k int) *apiError {
	if k < 0 {
		return badParam(field, strconv.Itoa(k), "%s must be non-negative, got %d.", field, k)
	}
	if k > maxLogprobs {
		return badParam(field, strconv.Itoa(k), "Requested sample logprobs of %d, which is greater than max allowed: %d", k, maxLogprobs)
	}
	return nil
}

// pyFloat writes a number as the messages of vLLM do.
func pyFloat(v float64) string {
	s := strconv.FormatFloat(v, 'g', -1, 64)
	if !strings.ContainsAny(s, ".eIN") {
		s += ".0"
	}
	return s
}

// decodeBody reads a JSON object. Unknown fields are ignored, as vLLM does.
func decodeBody(body io.Reader, into any) *apiError {
	raw, err := io.ReadAll(body)
	if err != nil {
		return readError(err)
	}
	if len(bytes.TrimSpace(raw)) == 0 {
		return badShape("", "Invalid JSON format")
	}
	if err := json.Unmarshal(raw, into); err != nil {
		return jsonError(err)
	}
	return nil
}

func jsonError(err error) *apiError {
	var syntax *json.SyntaxError
	var typ *json.UnmarshalTypeError
	switch {
	case errors.As(err, &syntax):
		loc := fmt.Sprintf("body.%d", syntax.Offset)
		return badShape(loc, fmt.Sprintf("1 validation error:\n  {'type': 'json_invalid', 'loc': '%s', 'msg': 'JSON decode error', 'ctx': {'error': %q}}", loc, syntax.Error()))
	case errors.As(err, &typ):
		loc := "body"
		for part := range strings.SplitSeq(typ.Field, ".") {
			if part != "" && part != "sampling" && part != "chatBody" { // embedded structs are no part of the body
				loc += "." + part
			}
		}
		kind, msg := pydantic(typ)
		return validation(kind, loc, msg, typ.Value)
	}
	return badShape("", err.Error())
}

// pydantic names the mismatch as vLLM's validator would.
func pydantic(e *json.UnmarshalTypeError) (kind, msg string) {
	switch e.Type.Kind().String() {
	case "float64", "float32":
		if e.Value == "string" {
			return "float_parsing", "Input should be a valid number, unable to parse string as a number"
		}
		return "float_type", "Input should be a valid number"
	case "int", "int32", "int64":
		if e.Value == "string" {
			return "int_parsing", "Input should be a valid integer, unable to parse string as an integer"
		}
		return "int_type", "Input should be a valid integer"
	case "bool":
		return "bool_type", "Input should be a valid boolean"
	case "string":
		return "string_type", "Input should be a valid string"
	case "slice":
		return "list_type", "Input should be a valid list"
	}
	return "model_attributes_type", "Input should be a valid dictionary or object to extract fields from"
}
