package rollout

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
)

func testRecord(i int) *Record {
	r := &Record{ID: fmt.Sprintf("r%d", i), Task: "<t>&\u2028", Status: Completed, Reward: 0.1 * float64(i), Grader: json.RawMessage(`{"a":[1,"<"]}`)}
	var row Row
	for k := range 50 {
		row.appendContext([]int32{int32(i), int32(k)})
		row.appendPolicy([]int32{int32(k)}, []float32{-float32(k) / 7})
	}
	r.Rows = []Row{row}
	return r
}

// writeLog writes steps of three records each and returns the size after each step.
func writeLog(t *testing.T, path string, steps int) []int64 {
	t.Helper()
	w, err := OpenRecords(path, -1)
	if err != nil {
		t.Fatal(err)
	}
	var sizes []int64
	for s := range steps {
		for k := range 3 {
			if err := w.Write(testRecord(3*s + k)); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Flush(); err != nil {
			t.Fatal(err)
		}
		sizes = append(sizes, w.Size())
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return sizes
}

func readIDs(t *testing.T, path string) (ids []string, whole int64, torn bool) {
	t.Helper()
	whole, torn, err := ReadRecords(path, func(r *Record) error {
		ids = append(ids, r.ID)
		return r.Validate()
	})
	if err != nil {
		t.Fatal(err)
	}
	return ids, whole, torn
}

func TestRecordLogRoundTrip(t *testing.T) {
	path := filepath.Join(t.TempDir(), "r.jsonl.zst")
	sizes := writeLog(t, path, 4)
	i := 0
	whole, torn, err := ReadRecords(path, func(r *Record) error {
		want, _ := json.Marshal(testRecord(i))
		got, _ := json.Marshal(r)
		if string(got) != string(want) {
			t.Errorf("record %d: %s", i, got)
		}
		i++
		return nil
	})
	if err != nil || torn || i != 12 || whole != sizes[3] {
		t.Errorf("%d records, %d bytes, torn %v, %v", i, whole, torn, err)
	}
	// Another tool must read the file as one zstd stream of JSON lines.
	f, _ := os.Open(path)
	defer f.Close()
	d, _ := zstd.NewReader(f)
	defer d.Close()
	lines := json.NewDecoder(d)
	for n := 0; lines.More(); n++ {
		var any map[string]any
		if err := lines.Decode(&any); err != nil || any["id"] != fmt.Sprintf("r%d", n) {
			t.Fatalf("line %d: %v", n, err)
		}
	}
}

func TestRecordLogTornAnywhere(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "r.jsonl.zst")
	sizes := writeLog(t, path, 3)
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	cutPath := filepath.Join(dir, "cut.jsonl.zst")
	for n := int64(0); n <= int64(len(data)); n++ {
		near := false // every byte beside a frame's edge, every fifth elsewhere
		for _, s := range append(sizes, 0) {
			near = near || max(n-s, s-n) <= 16
		}
		if !near && n%5 != 0 {
			continue
		}
		if err := os.WriteFile(cutPath, data[:n], 0o644); err != nil {
			t.Fatal(err)
		}
		steps, wantWhole := 0, int64(0)
		for _, s := range sizes {
			if n >= s {
				steps, wantWhole = steps+1, s
			}
		}
		ids, whole, torn := readIDs(t, cutPath)
		if len(ids) != 3*steps || whole != wantWhole || torn != (n != wantWhole) {
			t.Fatalf("cut at %d: %d records, whole %d, torn %v", n, len(ids), whole, torn)
		}
	}
	// Opening cuts the tail, and what is appended follows the last whole frame.
	os.WriteFile(cutPath, data[:sizes[1]+5], 0o644)
	w, err := OpenRecords(cutPath, -1)
	if err != nil || w.Size() != sizes[1] {
		t.Fatalf("size %d, %v", w.Size(), err)
	}
	w.Write(testRecord(99))
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if ids, _, torn := readIDs(t, cutPath); torn || strings.Join(ids, "") != "r0r1r2r3r4r5r99" {
		t.Errorf("after appending: %v", ids)
	}
}

func TestRecordLogBackToCheckpoint(t *testing.T) {
	path := filepath.Join(t.TempDir(), "r.jsonl.zst")
	sizes := writeLog(t, path, 3)
	// The steps after the checkpoint go, damaged or not.
	f, _ := os.OpenFile(path, os.O_WRONLY, 0)
	f.WriteAt([]byte("damage"), sizes[1])
	f.Close()
	w, err := OpenRecords(path, sizes[1])
	if err != nil {
		t.Fatal(err)
	}
	w.Close()
	if ids, _, torn := readIDs(t, path); len(ids) != 6 || torn {
		t.Errorf("%d records", len(ids))
	}
	if w, err = OpenRecords(path, 0); err != nil || w.Size() != 0 {
		t.Errorf("to the start: %v", err)
	}
	w.Close()
	writeLog(t, path, 1)
	for size, want := range map[int64]string{sizes[2] + 1000: "records are missing", 7: "no frame ends at byte 7"} {
		if _, err := OpenRecords(path, size); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("size %d: %v", size, err)
		}
	}
	if ids, _, _ := readIDs(t, path); len(ids) != 3 {
		t.Error("a refused opening must change nothing")
	}
}

func TestRecordLogDamage(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "r.jsonl.zst")
	sizes := writeLog(t, path, 2)
	data, _ := os.ReadFile(path)
	data[sizes[0]/2] ^= 0x40 // inside the first frame: no torn tail
	os.WriteFile(path, data, 0o644)
	if _, _, err := ReadRecords(path, func(*Record) error { return nil }); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("damage: %v", err)
	}
	os.WriteFile(path, []byte("not zstd at all"), 0o644)
	if _, _, err := ReadRecords(path, func(*Record) error { return nil }); err == nil || !strings.Contains(err.Error(), "no zstd frame") {
		t.Errorf("another file: %v", err)
	}
	if _, err := OpenRecords(path, -1); err == nil {
		t.Error("another file must not be appended to")
	}
	if _, err := OpenRecords(filepath.Join(dir, "no", "such"), -1); err == nil {
		t.Error("missing folder")
	}
	writeLog(t, filepath.Join(dir, "ok"), 1)
	if _, _, err := ReadRecords(filepath.Join(dir, "ok"), func(*Record) error { return errBoom }); !errors.Is(err, errBoom) {
		t.Errorf("the caller's error: %v", err)
	}
}

func TestRecordLogEndsLongFrames(t *testing.T) {
	path := filepath.Join(t.TempDir(), "r.jsonl.zst")
	w, err := OpenRecords(path, -1)
	if err != nil {
		t.Fatal(err)
	}
	r := testRecord(0)
	r.Error = strings.Repeat("x", frameBytes/2)
	for range 3 {
		if err := w.Write(r); err != nil {
			t.Fatal(err)
		}
	}
	if w.Size() == 0 {
		t.Error("a long step must not wait in memory")
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if ids, _, _ := readIDs(t, path); len(ids) != 3 {
		t.Errorf("%d records", len(ids))
	}
}

func FuzzReadFrames(f *testing.F) {
	e := newEncoder()
	f.Add(e.EncodeAll([]byte("{\"id\":\"x\"}\n"), nil))
	f.Add([]byte{0x28, 0xB5, 0x2F, 0xFD, 0xFF})
	f.Fuzz(func(t *testing.T, data []byte) {
		path := filepath.Join(t.TempDir(), "f")
		if err := os.WriteFile(path, data, 0o644); err != nil {
			t.Fatal(err)
		}
		whole, _, _ := ReadRecords(path, func(*Record) error { return nil }) // must neither panic nor hang
		if whole > int64(len(data)) {
			t.Fatal("more than there is")
		}
	})
}
