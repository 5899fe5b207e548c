package policy

import (
	"encoding/json"
	"net/http"
)

type tokenizeBody struct {
	chatBody
	Prompt *string `json:"prompt"`
	Strs   bool    `json:"return_token_strs"`
}

// tokenize encodes a text, or a conversation as the chat route would.
func (s *Server) tokenize(w http.ResponseWriter, r *http.Request) error {
	var body tokenizeBody
	if err := decodeBody(r.Body, &body); err != nil {
		return err
	}
	if err := s.checkModel(body.Model); err != nil {
		return err
	}
	if s.tok == nil {
		return noTokenizer("")
	}
	var ids []int32
	switch {
	case body.Prompt != nil:
		ids = s.tok.Encode(*body.Prompt, true)
	case len(body.Messages) > 0 && s.plain != nil:
		var err *apiError
		if ids, _, err = s.render(&body.chatBody); err != nil {
			return err
		}
	default:
		return validation("missing", "body.prompt", "Field required", "")
	}
	reply := map[string]any{"count": len(ids), "max_model_len": s.eng.opt.MaxModelLen, "tokens": ids, "token_strs": nil}
	if ids == nil {
		reply["tokens"] = []int32{}
	}
	if body.Strs {
		strs := make([]string, len(ids))
		for i, id := range ids {
			strs[i] = piece(s.tok, id)
		}
		reply["token_strs"] = strs
	}
	return writeJSON(w, reply)
}

func (s *Server) detokenize(w http.ResponseWriter, r *http.Request) error {
	var body struct {
		Model  string          `json:"model"`
		Tokens json.RawMessage `json:"tokens"`
	}
	if err := decodeBody(r.Body, &body); err != nil {
		return err
	}
	if err := s.checkModel(body.Model); err != nil {
		return err
	}
	if s.tok == nil {
		return noTokenizer("")
	}
	ids, err := readIDs(body.Tokens, "body.tokens")
	if err != nil {
		return err
	}
	if err := s.checkPrompt(ids); err != nil {
		return err
	}
	return writeJSON(w, map[string]string{"prompt": s.tok.Decode(ids)})
}
