package policy

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"runtime/debug"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"harness-s/model/chat"
	"harness-s/model/tokenizer"
)

// Version is what /version answers: the API spoken is that vLLM release's.
const Version = "0.32.0+harness-s"

// WeightsIntact is the header of a failed reload_weights after which the old weights still serve. vLLM never sends
// it: there, a failed reload leaves the weights unusable.
const WeightsIntact = "X-Weights-Intact"

// ServerOptions are the HTTP side's settings. Zero values take the defaults named.
type ServerOptions struct {
	Model       string    // name served; required
	ModelDir    string    // what reload_weights without a path loads again
	Dev         bool      // serve the routes that control weights and caches
	MaxBody     int64     // bytes of one request; 16 MiB
	MaxInFlight int       // requests served at once; 2048
	Thinking    bool      // chat turns think unless the request says otherwise
	Log         io.Writer // panics and refusals; nil discards
}

// Server speaks vLLM's HTTP API over an engine.
type Server struct {
	eng      *Engine
	tok      *tokenizer.Tokenizer // nil: ids only
	opt      ServerOptions
	log      *log.Logger
	started  int64
	inFlight atomic.Int64
	plain    *chat.Renderer // nil when the tokenizer has no turn tokens: no chat routes then
	thinking *chat.Renderer
	closing  sync.Once
	closers  []func() error // what Close frees after the engine has ended
	closeErr error
}

// NewServer wires a server; it does not listen. Without a tokenizer (nil) it takes and gives token ids only.
func NewServer(eng *Engine, tok *tokenizer.Tokenizer, opt ServerOptions) (*Server, error) {
	if opt.Model == "" {
		return nil, errors.New("policy server: a model name is needed")
	}
	if opt.MaxBody <= 0 {
		opt.MaxBody = 16 << 20
	}
	opt.MaxInFlight = orDefault(opt.MaxInFlight, 2048)
	if opt.Log == nil {
		opt.Log = io.Discard
	}
	s := &Server{eng: eng, tok: tok, opt: opt, log: log.New(opt.Log, "policy server: ", log.LstdFlags), started: time.Now().Unix()}
	if tok == nil {
		s.log.Print("no tokenizer: token ids only")
		return s, nil
	}
	var err error
	if s.plain, err = chat.NewRenderer(tok, false); err == nil {
		s.thinking, err = chat.NewRenderer(tok, true)
	}
	if err != nil {
		s.plain = nil
		s.log.Printf("no chat routes: %v", err)
	}
	return s, nil
}

// Close ends the engine and frees what Open made. It may be called more than once.
func (s *Server) Close() error {
	s.closing.Do(func() {
		s.eng.Close()
		for _, f := range s.closers {
			s.closeErr = errors.Join(s.closeErr, f())
		}
	})
	return s.closeErr
}

// endpoint answers one request; its error is written in vLLM's envelope.
type endpoint func(w http.ResponseWriter, r *http.Request) error

// Handler is the whole API.
func (s *Server) Handler() http.Handler {
	mux := http.NewServeMux()
	handle := func(method, path string, f endpoint) { mux.Handle(path, s.guard(method, f)) }
	handle("GET", "/health", s.health)
	handle("GET", "/ping", s.health)
	handle("GET", "/version", s.version)
	handle("GET", "/load", s.load)
	handle("GET", "/v1/models", s.models)
	mux.Handle("/metrics", s.eng.met.handler(s.opt.Model))
	handle("POST", "/v1/completions", s.completions)
	handle("POST", "/inference/v1/generate", s.generate)
	handle("POST", "/inference/v1/abort_requests", s.abortGenerate)
	handle("POST", "/tokenize", s.tokenize)
	handle("POST", "/detokenize", s.detokenize)
	if s.plain != nil {
		handle("POST", "/v1/chat/completions", s.chat)
	}
	if s.opt.Dev {
		s.devRoutes(handle)
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) { writeDetail(w, http.StatusNotFound, "Not Found") })
	return mux
}

// guard bounds a request and turns its errors and panics into answers.
func (s *Server) guard(method string, f endpoint) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != method {
			w.Header().Set("Allow", method)
			writeDetail(w, http.StatusMethodNotAllowed, "Method Not Allowed")
			return
		}
		if s.inFlight.Add(1) > int64(s.opt.MaxInFlight) {
			s.inFlight.Add(-1)
			s.fail(w, ErrQueueFull)
			return
		}
		defer s.inFlight.Add(-1)
		defer func() {
			if p := recover(); p != nil {
				if p == http.ErrAbortHandler {
					panic(p)
				}
				s.log.Printf("%s %s: panic: %v\n%s", r.Method, r.URL.Path, p, debug.Stack())
				s.fail(w, fmt.Errorf("internal error: %v", p))
			}
		}()
		err := readBody(w, r, s.opt.MaxBody)
		if err == nil {
			err = f(w, r)
		}
		if err != nil {
			s.fail(w, err)
		}
	})
}

// readBody takes the whole body in before the request is worked on, within a time limit that ends with it: the
// server's own ReadTimeout would go on running and cut off a long generation.
func readBody(w http.ResponseWriter, r *http.Request, limit int64) error {
	control := http.NewResponseController(w) // its errors: a writer without deadlines, in tests
	control.SetReadDeadline(time.Now().Add(readTimeout))
	raw, err := io.ReadAll(http.MaxBytesReader(w, r.Body, limit))
	if err != nil {
		return readError(err)
	}
	control.SetReadDeadline(time.Time{})
	r.Body = io.NopCloser(bytes.NewReader(raw))
	return nil
}

// writeSoon gives the client a time limit for taking in what is written next.
func writeSoon(w http.ResponseWriter) {
	http.NewResponseController(w).SetWriteDeadline(time.Now().Add(writeTimeout))
}

// fail answers with an error. A stream that has begun reports its own.
func (s *Server) fail(w http.ResponseWriter, err error) {
	e := asAPIError(err)
	if e.status >= 500 {
		s.log.Printf("%d %s", e.status, e.message)
	}
	if e.status == http.StatusServiceUnavailable {
		w.Header().Set("Retry-After", "1")
	}
	writeRaw(w, e.status, e.append(nil))
}

func readError(err error) *apiError {
	var tooLarge *http.MaxBytesError
	if errors.As(err, &tooLarge) {
		return &apiError{http.StatusRequestEntityTooLarge, "BadRequestError", fmt.Sprintf("the request body is larger than %d bytes", tooLarge.Limit), ""}
	}
	return badShape("", "reading the request body: "+err.Error())
}

func writeRaw(w http.ResponseWriter, status int, body []byte) {
	writeSoon(w)
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	w.Write(body)
}

// writeJSON is for small replies off the hot path.
func writeJSON(w http.ResponseWriter, v any) error {
	var body bytes.Buffer
	enc := json.NewEncoder(&body)
	enc.SetEscapeHTML(false) // markers like <|im_end|> stay readable
	if err := enc.Encode(v); err != nil {
		return err
	}
	writeRaw(w, http.StatusOK, body.Bytes())
	return nil
}

func writeDetail(w http.ResponseWriter, status int, detail string) {
	writeRaw(w, status, append(appendString([]byte(`{"detail":`), detail), '}'))
}

func (s *Server) health(w http.ResponseWriter, r *http.Request) error {
	if err := s.eng.Err(); err != nil {
		s.log.Print(err)
		w.WriteHeader(http.StatusServiceUnavailable)
		return nil
	}
	w.WriteHeader(http.StatusOK)
	return nil
}

func (s *Server) version(w http.ResponseWriter, r *http.Request) error {
	return writeJSON(w, map[string]string{"version": Version})
}

func (s *Server) load(w http.ResponseWriter, r *http.Request) error {
	return writeJSON(w, map[string]int64{"server_load": s.inFlight.Load() - 1})
}

func (s *Server) models(w http.ResponseWriter, r *http.Request) error {
	return writeJSON(w, map[string]any{"object": "list", "data": []any{map[string]any{
		"id": s.opt.Model, "object": "model", "created": s.started, "owned_by": "harness-s", "root": s.opt.Model,
		"parent": nil, "max_model_len": s.eng.opt.MaxModelLen, "permission": []any{}}}})
}

// checkModel accepts the served name or none.
func (s *Server) checkModel(name string) *apiError {
	if name == "" || name == s.opt.Model {
		return nil
	}
	return &apiError{http.StatusNotFound, "NotFoundError",
		fmt.Sprintf("The model `%s` does not exist. Valid aliases: %s.", name, s.opt.Model), "model"}
}

// requestID is the client's id for a request, or a new one. The header wins, as in vLLM.
func requestID(r *http.Request, field string) string {
	id := r.Header.Get("X-Request-Id")
	if id == "" {
		id = field
	}
	if id == "" || len(id) > 256 {
		var b [8]byte
		rand.Read(b[:])
		id = hex.EncodeToString(b[:])
	}
	return id
}

// checkSalt validates cache_salt and needs nothing else of it: no result here depends on what is cached, and kept
// states never outlive the weights that made them.
func checkSalt(salt *string) *apiError {
	if salt != nil && (*salt == "" || len(*salt) > maxSaltLen) {
		return badValue("cache_salt", "cache_salt must have 1 to %d characters, got %d", maxSaltLen, len(*salt))
	}
	return nil
}

// checkPrompt checks ids against the vocabulary.
func (s *Server) checkPrompt(ids []int32) *apiError {
	for _, id := range ids {
		if id < 0 || int(id) >= s.eng.opt.Vocab {
			return badValue("", "Token id %d is out of vocabulary", id)
		}
	}
	return nil
}
