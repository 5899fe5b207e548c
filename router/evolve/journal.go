package evolve

import (
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"sync"

	"harness-s/internal/linelog"
	"harness-s/internal/strictyaml"
)

// JournalName is the file that makes an evolution resumable.
const JournalName = "journal.jsonl"

// maxEntry bounds one line of the journal.
const maxEntry = 64 << 20

// entry is one unit of work done: a line of the journal.
type entry struct {
	Key     string          `json:"key"`
	Value   json.RawMessage `json:"value,omitempty"`
	Calls   int             `json:"calls,omitempty"` // spent since the entry before, by whatever unit
	Tokens  int             `json:"tokens,omitempty"`
	Seconds float64         `json:"seconds,omitempty"` // of a process that ended in order
}

// journal keeps what units of work gave. A unit is written once and made durable before anything follows from it; a
// repeated run reads it back instead of doing it again. So an evolution is a function of its options and its journal
// (with the rollouts' files), and a resumed one takes the same course.
type journal struct {
	mu      sync.Mutex
	log     *linelog.Log
	done    map[string]entry
	cost    Cost // calls and tokens of all entries
	used    Cost // of the units that this process did or read back
	seconds float64
	worked  bool // something was done, not only read back
}

// openJournal reads the journal of a run folder, or begins it. A line that is whole and not an entry is damage.
func openJournal(dir string) (*journal, error) {
	path := filepath.Join(dir, JournalName)
	j := &journal{done: map[string]entry{}}
	const mend = "remove it and all that follow, then resume"
	log, err := linelog.Open(path, maxEntry, func(number int, text []byte) error {
		var e entry
		if json.Unmarshal(text, &e) != nil || e.Key == "" {
			return fmt.Errorf("line %d is damaged: %s", number, mend)
		}
		j.take(e)
		return nil
	})
	if errors.Is(err, linelog.ErrTooLong) {
		err = fmt.Errorf("%w: %s", err, mend)
	}
	if err != nil {
		return nil, fmt.Errorf("journal %s: %w", path, err)
	}
	j.log = log
	return j, nil
}

func (j *journal) take(e entry) {
	if len(e.Value) > 0 {
		j.done[e.Key] = e
	}
	j.cost.Calls += e.Calls
	j.cost.Tokens += e.Tokens
	j.seconds += e.Seconds
}

// get is what a unit gave. Its cost counts as used from the first time on.
func (j *journal) get(key string) (json.RawMessage, bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	e, ok := j.done[key]
	j.use(key)
	return e.Value, ok
}

// use counts the cost of a unit, once.
func (j *journal) use(key string) {
	if e, ok := j.done[key]; ok {
		j.used = j.used.plus(Cost{Calls: e.Calls, Tokens: e.Tokens})
		j.done[key] = entry{Key: e.Key, Value: e.Value}
	}
}

// usedNow is the requests and tokens of the units up to here.
func (j *journal) usedNow() Cost {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.used
}

// work notes that something was done; idle says whether nothing was since it was last asked.
func (j *journal) work() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.worked = true
}

func (j *journal) idle() bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	was := j.worked
	j.worked = false
	return !was
}

// put makes an entry durable, with what was spent since the last one. After a failed write it refuses.
func (j *journal) put(m Meter, e entry) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	calls, tokens := m.Spent()
	e.Calls, e.Tokens = calls-j.cost.Calls, tokens-j.cost.Tokens
	line, err := strictyaml.Marshal(e)
	if err == nil && len(line) > maxEntry {
		err = fmt.Errorf("%d bytes; at most %d", len(line), maxEntry)
	}
	if err == nil {
		err = j.log.Append(line)
	}
	if err != nil {
		return fmt.Errorf("journal: %s: %w", e.Key, err)
	}
	j.take(e)
	j.worked = true
	j.use(e.Key)
	return nil
}

// session ends a process's part: its time, and what failed requests spent, so that limits hold over interruptions.
func (j *journal) session(m Meter, seconds float64) error {
	return j.put(m, entry{Key: sessionKey, Seconds: seconds})
}

const sessionKey = "session"

func (j *journal) close() error { return j.log.Close() }

// unit gives what the unit of work named key gave before, or does it now and keeps it. It may be called from several
// goroutines, each with keys of its own.
func unit[T any](j *journal, m Meter, key string, do func() (T, error)) (T, error) {
	var v T
	raw, ok := j.get(key)
	if !ok {
		v, err := do()
		if err != nil {
			return v, err
		}
		if raw, err = strictyaml.Marshal(v); err != nil {
			return v, fmt.Errorf("journal: %s: %w", key, err)
		}
		if err := j.put(m, entry{Key: key, Value: raw}); err != nil {
			return v, err
		}
	}
	if err := json.Unmarshal(raw, &v); err != nil { // what was just made goes on as it will be read back
		return v, fmt.Errorf("journal: %s: %w", key, err)
	}
	return v, nil
}

// noMeter is the meter of parts that spend nothing.
type noMeter struct{}

func (noMeter) Spent() (int, int) { return 0, 0 }
func (noMeter) Charge(int, int)   {}
