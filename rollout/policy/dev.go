package policy

import (
	"encoding/json"
	"fmt"
	"net/http"
)

// devRoutes control the server: weights, caches, pauses. They must not face a network.
func (s *Server) devRoutes(handle func(method, path string, f endpoint)) {
	handle("POST", "/pause", s.pause)
	handle("POST", "/resume", s.resume)
	handle("GET", "/is_paused", func(w http.ResponseWriter, r *http.Request) error {
		return writeJSON(w, map[string]bool{"is_paused": s.eng.Paused()})
	})
	handle("POST", "/abort_requests", s.abortRequests)
	handle("POST", "/reset_prefix_cache", s.resetPrefixCache)
	handle("POST", "/collective_rpc", s.collectiveRPC)
	handle("POST", "/update_weight_version", s.updateWeightVersion)
	handle("GET", "/weight_info", func(w http.ResponseWriter, r *http.Request) error {
		return writeJSON(w, map[string]string{"weight_version": s.eng.Version()})
	})
	handle("GET", "/get_world_size", func(w http.ResponseWriter, r *http.Request) error {
		return writeJSON(w, map[string]int{"world_size": 1})
	})
}

func (s *Server) pause(w http.ResponseWriter, r *http.Request) error {
	mode := PauseMode(r.URL.Query().Get("mode"))
	switch mode {
	case "":
		mode = PauseAbort
	case PauseAbort, PauseWait, PauseKeep:
	default:
		return badShape("query.mode", fmt.Sprintf("1 validation error:\n  {'type': 'literal_error', 'loc': 'query.mode', 'msg': \"Input should be 'abort', 'wait' or 'keep'\", 'input': %q}", string(mode)))
	}
	if err := s.eng.Pause(r.Context(), mode); err != nil {
		return err
	}
	return writeJSON(w, map[string]string{"status": "paused"})
}

func (s *Server) resume(w http.ResponseWriter, r *http.Request) error {
	if err := s.eng.Resume(r.Context()); err != nil {
		return err
	}
	return writeJSON(w, map[string]string{"status": "resumed"})
}

type abortBody struct {
	IDs []string `json:"request_ids"`
}

func (s *Server) abortRequests(w http.ResponseWriter, r *http.Request) error {
	var body abortBody
	if err := decodeBody(r.Body, &body); err != nil {
		return err
	}
	if err := s.eng.Abort(r.Context(), body.IDs); err != nil {
		return err
	}
	return writeJSON(w, map[string]any{"status": "aborted", "aborted": len(body.IDs)})
}

// abortGenerate is the route that serves without the development routes.
func (s *Server) abortGenerate(w http.ResponseWriter, r *http.Request) error {
	var body abortBody
	if err := decodeBody(r.Body, &body); err != nil {
		return err
	}
	if body.IDs == nil {
		return validation("missing", "body.request_ids", "Field required", "")
	}
	if err := s.eng.Abort(r.Context(), body.IDs); err != nil {
		return err
	}
	w.WriteHeader(http.StatusOK)
	return nil
}

func (s *Server) resetPrefixCache(w http.ResponseWriter, r *http.Request) error {
	done, err := s.eng.ResetPrefixCache(r.Context(), r.URL.Query().Get("reset_running_requests") == "true")
	if err != nil {
		return err
	}
	return writeJSON(w, map[string]bool{"success": done})
}

type rpcBody struct {
	Method string                     `json:"method"`
	Args   []json.RawMessage          `json:"args"`
	Kwargs map[string]json.RawMessage `json:"kwargs"`
}

// collectiveRPC knows one method, reload_weights.
func (s *Server) collectiveRPC(w http.ResponseWriter, r *http.Request) error {
	var body rpcBody
	if err := decodeBody(r.Body, &body); err != nil {
		return err
	}
	if body.Method == "" {
		return badShape("", "Missing 'method' in request body")
	}
	if body.Method != "reload_weights" {
		return &apiError{http.StatusNotImplemented, "NotImplementedError", fmt.Sprintf("collective_rpc method %q is not supported by this server", body.Method), "method"}
	}
	if len(body.Args) > 0 {
		return badValue("args", "reload_weights takes kwargs only: {\"weights_path\": DIR}")
	}
	dir := s.opt.ModelDir
	for key, raw := range body.Kwargs {
		if key != "weights_path" {
			w.Header().Set(WeightsIntact, "true")
			return fmt.Errorf("reload_weights() got an unexpected keyword argument '%s'", key)
		}
		if err := json.Unmarshal(raw, &dir); err != nil {
			return jsonError(err)
		}
	}
	if err := s.eng.ReloadWeights(r.Context(), dir); err != nil {
		w.Header().Set(WeightsIntact, "true")
		return err
	}
	return writeJSON(w, map[string]any{"results": []any{nil}})
}

func (s *Server) updateWeightVersion(w http.ResponseWriter, r *http.Request) error {
	var body struct {
		Version string `json:"new_version"`
	}
	if err := decodeBody(r.Body, &body); err != nil {
		return err
	}
	if body.Version == "" {
		return badShape("body.new_version", "Missing 'new_version' in request body")
	}
	if err := s.eng.SetVersion(r.Context(), body.Version); err != nil {
		return err
	}
	return writeJSON(w, map[string]any{"success": true, "new_version": body.Version})
}
