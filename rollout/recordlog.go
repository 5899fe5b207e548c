package rollout

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/klauspost/compress/zstd"

	"harness-s/internal/atomicfile"
	"harness-s/internal/strictyaml"
)

// frameBytes of JSON end a frame early, so that a long step does not lie in memory.
const frameBytes = 8 << 20

// RecordWriter appends records to a file of zstd frames, each holding whole lines of JSON, one a record. A crash costs
// at most what came after the last Flush. It is used by one goroutine.
type RecordWriter struct {
	path    string
	f       *os.File
	enc     *zstd.Encoder
	pending bytes.Buffer // JSON lines of the frame to come
	size    int64        // bytes of whole frames in the file
	err     error        // the first failed write; nothing is written after it
}

// OpenRecords opens or makes a record file for appending. What lies behind size bytes is cut off: a trainer that
// resumes passes the Size of its checkpoint. A negative size keeps every whole frame and cuts only a torn tail.
func OpenRecords(path string, size int64) (*RecordWriter, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("record log: %w", err)
	}
	w := &RecordWriter{path: path, f: f, enc: newEncoder()}
	if err := w.cutTo(size); err != nil {
		f.Close()
		return nil, fmt.Errorf("record log %s: %w", path, err)
	}
	return w, nil
}

// cutTo finds the place to append at.
func (w *RecordWriter) cutTo(size int64) error {
	st, err := w.f.Stat()
	if err != nil {
		return err
	}
	if size > st.Size() {
		return fmt.Errorf("has %d bytes, the checkpoint says %d: records are missing", st.Size(), size)
	}
	kept := st.Size()
	if size >= 0 {
		kept = size
	}
	err = scanFrames(io.NewSectionReader(w.f, 0, kept), func(frame []byte) error {
		w.size += int64(len(frame))
		return nil
	})
	if err != nil && !errors.Is(err, errTorn) {
		return fmt.Errorf("at byte %d: %w", w.size, err)
	}
	if size >= 0 && w.size != size {
		return fmt.Errorf("no frame ends at byte %d", size)
	}
	if w.size < st.Size() {
		if err := w.f.Truncate(w.size); err != nil {
			return err
		}
	}
	if _, err := w.f.Seek(w.size, io.SeekStart); err != nil {
		return err
	}
	if err := w.f.Sync(); err != nil {
		return err
	}
	return atomicfile.SyncDir(filepath.Dir(w.path)) // the file's name, when it is new
}

// Write adds a record to the frame to come.
func (w *RecordWriter) Write(r *Record) error {
	if w.err != nil {
		return w.err
	}
	line, err := strictyaml.Marshal(r)
	if err != nil {
		return fmt.Errorf("record log %s: rollout %s: %w", w.path, r.ID, err)
	}
	w.pending.Write(line)
	w.pending.WriteByte('\n')
	if w.pending.Len() >= frameBytes {
		return w.endFrame()
	}
	return nil
}

// endFrame writes the pending lines as one frame.
func (w *RecordWriter) endFrame() error {
	if w.err != nil || w.pending.Len() == 0 {
		return w.err
	}
	frame := w.enc.EncodeAll(w.pending.Bytes(), nil)
	if _, err := w.f.Write(frame); err != nil {
		w.err = fmt.Errorf("record log %s: %w", w.path, err)
		return w.err
	}
	w.size += int64(len(frame))
	w.pending.Reset()
	return nil
}

// Flush ends the frame and makes everything written so far durable: call it once a step.
func (w *RecordWriter) Flush() error {
	if err := w.endFrame(); err != nil {
		return err
	}
	if err := w.f.Sync(); err != nil {
		w.err = fmt.Errorf("record log %s: %w", w.path, err)
	}
	return w.err
}

// Size is the length of the file after the last Flush: a place OpenRecords can go back to.
func (w *RecordWriter) Size() int64 { return w.size }

// Close flushes and closes.
func (w *RecordWriter) Close() error {
	err := w.Flush()
	return errors.Join(err, w.enc.Close(), w.f.Close())
}

// ReadRecords calls each with every record in order and returns how many bytes hold whole frames. A torn tail, what
// a crash leaves, is no error: torn tells of it. Damage before the tail is an error, and so is each's.
func ReadRecords(path string, each func(*Record) error) (whole int64, torn bool, err error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, false, fmt.Errorf("record log: %w", err)
	}
	defer f.Close()
	dec := newDecoder()
	defer dec.Close()
	err = scanFrames(f, func(frame []byte) error {
		text, err := dec.DecodeAll(frame, nil)
		if err != nil {
			return fmt.Errorf("frame at byte %d: %w", whole, err)
		}
		if err := eachLine(text, each); err != nil {
			return fmt.Errorf("frame at byte %d: %w", whole, err)
		}
		whole += int64(len(frame))
		return nil
	})
	if errors.Is(err, errTorn) {
		return whole, true, nil
	}
	if err != nil {
		return whole, false, fmt.Errorf("record log %s: %w", path, err)
	}
	return whole, false, nil
}

func eachLine(text []byte, each func(*Record) error) error {
	for line := range bytes.Lines(text) {
		r := new(Record)
		if err := json.Unmarshal(line, r); err != nil {
			return err
		}
		if err := each(r); err != nil {
			return err
		}
	}
	return nil
}

// scanFrames calls each with every whole frame; errTorn when the file ends inside one.
func scanFrames(r io.Reader, each func(frame []byte) error) error {
	b := bufio.NewReaderSize(r, 1<<20)
	for {
		frame, err := readFrame(b)
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		if err := each(frame); err != nil {
			return err
		}
	}
}
