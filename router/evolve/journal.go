package evolve

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"

	"harness-s/internal/atomicfile"
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
	f       *os.File
	done    map[string]entry
	cost    Cost // calls and tokens of all entries
	used    Cost // of the units that this process did or read back
	seconds float64
	worked  bool // something was done, not only read back
	failed  error
}

// openJournal reads the journal of a run folder, or begins it. A torn last line, what a crash leaves, is cut off.
func openJournal(dir string) (*journal, error) {
	path := filepath.Join(dir, JournalName)
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("open journal: %w", err)
	}
	j := &journal{f: f, done: map[string]entry{}}
	size, err := j.read(f)
	if err == nil {
		err = f.Truncate(size)
	}
	if err == nil {
		_, err = f.Seek(size, io.SeekStart)
	}
	if err == nil {
		err = atomicfile.SyncDir(dir)
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("journal %s: %w", path, err)
	}
	return j, nil
}

// read takes in the whole lines of r and returns how long they are. A line that is whole and not an entry is damage.
func (j *journal) read(r io.Reader) (size int64, err error) {
	b := bufio.NewReaderSize(r, 1<<20)
	for number := 1; ; number++ {
		line, err := readLine(b, maxEntry)
		if err == io.EOF {
			return size, nil // what is left of a line has no end
		}
		var e entry
		if err == nil && (json.Unmarshal(line, &e) != nil || e.Key == "") {
			err = errDamaged
		}
		if err != nil {
			return 0, fmt.Errorf("line %d %w", number, err)
		}
		j.take(e)
		size += int64(len(line))
	}
}

var errDamaged = errors.New("is damaged: remove it and all that follow, then resume")

// readLine reads a line of at most max bytes and its end.
func readLine(b *bufio.Reader, max int) ([]byte, error) {
	var line []byte
	for {
		part, err := b.ReadSlice('\n')
		line = append(line, part...)
		if len(line) > max+1 {
			return nil, errDamaged
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			return line, err
		}
	}
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

// put makes an entry durable, with what was spent since the last one. After a failed write it refuses: half a line may be
// in the file, and what came behind it would be lost with it.
func (j *journal) put(m Meter, e entry) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.failed != nil {
		return j.failed
	}
	calls, tokens := m.Spent()
	e.Calls, e.Tokens = calls-j.cost.Calls, tokens-j.cost.Tokens
	line, err := strictyaml.Marshal(e)
	if err == nil && len(line) > maxEntry {
		err = fmt.Errorf("%d bytes; at most %d", len(line), maxEntry)
	}
	if err != nil {
		return fmt.Errorf("journal: %s: %w", e.Key, err)
	}
	_, err = j.f.Write(append(line, '\n'))
	if err == nil {
		err = j.f.Sync()
	}
	if err != nil {
		j.failed = fmt.Errorf("journal: %s: %w", e.Key, err)
		return j.failed
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

func (j *journal) close() error { return j.f.Close() }

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
