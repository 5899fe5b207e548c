package router

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"harness-s/internal/linelog"
)

// answers keeps what was answered by those who might answer otherwise when asked again, so that a run that is resumed rests on
// the same answers. Each is appended to a file, and that synced, before anything rests on it. Many goroutines may ask at
// once; of those who ask for the same key one asks and the others wait.
type answers struct {
	path string // empty: in memory only

	mu     sync.Mutex
	loaded bool
	known  map[string]json.RawMessage
	asking map[string]chan struct{}
	log    *linelog.Log // open once something is kept
}

// answerLine is one line of the file.
type answerLine struct {
	Key   string          `json:"key"`
	Value json.RawMessage `json:"value"`
}

// maxAnswers bounds the file that is read back, in bytes.
const maxAnswers = 1 << 28

func newAnswers(path string) *answers {
	return &answers{path: path, known: map[string]json.RawMessage{}, asking: map[string]chan struct{}{}}
}

// get returns the answer to key, and asks for it when it is not known. What ask returns with an error is not kept.
func (a *answers) get(ctx context.Context, key string, ask func() (json.RawMessage, error)) (json.RawMessage, error) {
	for {
		a.mu.Lock()
		if err := a.load(); err != nil {
			a.mu.Unlock()
			return nil, err
		}
		if value, ok := a.known[key]; ok {
			a.mu.Unlock()
			return value, nil
		}
		other := a.asking[key]
		if other == nil {
			break
		}
		a.mu.Unlock()
		select {
		case <-other: // it answered, or gave up: then it is this one's turn
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	done := make(chan struct{})
	a.asking[key] = done
	a.mu.Unlock()

	value, err := ask()

	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.asking, key)
	close(done)
	if err != nil {
		return nil, err
	}
	if err := a.append(answerLine{key, value}); err != nil {
		return nil, fmt.Errorf("router: keep an answer in %s: %w", a.path, err)
	}
	a.known[key] = value
	return value, nil
}

// put tells an answer that is known from elsewhere.
func (a *answers) put(key string, value json.RawMessage) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.known[key] = value
}

// load reads the file once. A last line without an end is what a crash left: nothing rested on it.
func (a *answers) load() error {
	if a.loaded || a.path == "" {
		return nil
	}
	info, err := os.Stat(a.path)
	if errors.Is(err, fs.ErrNotExist) {
		a.loaded = true
		return nil
	}
	if err != nil {
		return fmt.Errorf("router: read answers: %w", err)
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("router: read answers: %s is not a file", a.path)
	}
	if info.Size() > maxAnswers {
		return fmt.Errorf("router: read answers: %s holds %d bytes, more than %d", a.path, info.Size(), maxAnswers)
	}
	f, err := os.Open(a.path)
	if err != nil {
		return fmt.Errorf("router: read answers: %w", err)
	}
	defer f.Close()
	_, err = linelog.Read(f, maxAnswers, func(number int, text []byte) error {
		var l answerLine
		if err := json.Unmarshal(text, &l); err != nil || l.Key == "" {
			return fmt.Errorf("router: %s:%d: not an answer; remove the line, then resume", a.path, number)
		}
		if _, twice := a.known[l.Key]; !twice {
			a.known[l.Key] = l.Value
		}
		return nil
	})
	if err != nil {
		return err
	}
	a.loaded = true
	return nil
}

// append writes a line, behind the last whole one.
func (a *answers) append(l answerLine) error {
	if a.path == "" {
		return nil
	}
	if a.log == nil {
		if err := os.MkdirAll(filepath.Dir(a.path), 0o755); err != nil {
			return err
		}
		log, err := linelog.Open(a.path, maxAnswers, func(int, []byte) error { return nil }) // load has read them
		if err != nil {
			return err
		}
		a.log = log
	}
	line, err := json.Marshal(l)
	if err != nil {
		return err
	}
	return a.log.Append(line)
}

func (a *answers) close() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.log == nil {
		return nil
	}
	err := a.log.Close()
	a.log = nil
	return err
}
