// Package runfolder keeps the files of one training run: one owner at a time, every file whole or absent, and
// after a crash exactly what the last checkpoint knows of.
//
//	config.yaml                   resolved config
//	pool/                         frozen harness specs
//	metrics.jsonl                 one line a step: {"step": N, "reward/mean": ...}
//	rollouts/LABEL_N.jsonl.zst    rollouts of step N; labels: step, before, eval, after, anchor
//	router/                       router statistics by step
//	checkpoints/step_N/           N completed steps: Hugging Face folder, optimizer.moments, state.json
//	sync/step_N/                  weights last sent to the rollout servers
//	nonfinite/                    minibatches whose loss or gradient was not finite
//	summary.json, report.html     the outcome
//
// A checkpoint is the commit: metrics and rollouts of later steps are cut when a run resumes.
package runfolder

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
	"syscall"

	"harness-s/internal/atomicfile"
)

// Folder is an open run folder. It is locked for this process until Close.
type Folder struct {
	Dir  string
	lock *os.File
}

var subfolders = []string{"pool", "rollouts", "router", "checkpoints", "sync"}

// Open makes or takes over the folder dir. Without resume it must not hold a run yet, or parts of one; with resume it
// must.
func Open(dir string, resume bool) (*Folder, error) { return OpenWith(dir, resume, subfolders) }

// OpenWith is Open of a folder with other subfolders than a training run's.
func OpenWith(dir string, resume bool, subfolders []string) (*Folder, error) {
	if _, err := os.Stat(dir); resume && errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("run folder %s holds no run to resume: there is no such folder", dir)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("open run folder: %w", err)
	}
	f := &Folder{Dir: dir}
	if err := f.acquire(); err != nil {
		return nil, err
	}
	_, err := os.Stat(f.Path("config.yaml"))
	used := err == nil
	switch {
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		err = fmt.Errorf("open run folder: %w", err)
	case used && !resume:
		err = fmt.Errorf("run folder %s holds a run already: continue it with --resume, or choose another with --run", dir)
	case !used && f.leftovers() != "":
		err = fmt.Errorf("run folder %s has %s of a run but no config.yaml: put that file back, or choose another folder with --run", dir, f.leftovers())
	case !used && resume:
		err = fmt.Errorf("run folder %s holds no run to resume (no config.yaml)", dir)
	default:
		err = nil
	}
	for _, sub := range subfolders {
		if err == nil {
			err = os.MkdirAll(f.Path(sub), 0o755)
		}
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// leftovers names what a run has written into the folder: a new run would mix with it, or continue from it by mistake.
func (f *Folder) leftovers() string {
	for _, pattern := range []string{"metrics.jsonl", "checkpoints/step_*", "rollouts/*.zst", "summary.json"} {
		if found, err := fs.Glob(os.DirFS(f.Dir), pattern); err == nil && len(found) > 0 {
			return found[0]
		}
	}
	return ""
}

// DropUnused removes a closed folder in which no run ever began. Whatever else lies in it stays, and the folder with it.
func (f *Folder) DropUnused() {
	if _, err := os.Stat(f.Path("config.yaml")); !errors.Is(err, fs.ErrNotExist) {
		return
	}
	for _, sub := range subfolders {
		os.Remove(f.Path(sub)) // only when empty
	}
	os.Remove(f.Path(".lock"))
	os.Remove(f.Dir)
}

// acquire takes the folder's lock, which the system drops when the process ends, however it ends.
func (f *Folder) acquire() error {
	lock, err := os.OpenFile(f.Path(".lock"), os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return fmt.Errorf("lock run folder: %w", err)
	}
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		holder, _ := io.ReadAll(io.LimitReader(lock, 32))
		lock.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return fmt.Errorf("run folder %s is in use by process %s: wait for it or choose another folder with --run", f.Dir, strings.TrimSpace(string(holder)))
		}
		return fmt.Errorf("lock run folder %s: %w", f.Dir, err)
	}
	if err := lock.Truncate(0); err == nil {
		_, err = lock.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
		if err != nil {
			lock.Close()
			return fmt.Errorf("lock run folder %s: %w", f.Dir, err)
		}
	}
	f.lock = lock
	return nil
}

// Close drops the lock.
func (f *Folder) Close() error { return f.lock.Close() }

// Path joins names to the folder.
func (f *Folder) Path(elem ...string) string {
	return filepath.Join(append([]string{f.Dir}, elem...)...)
}

// Write replaces a file of the folder, whole or not at all.
func (f *Folder) Write(name string, data []byte) error {
	return atomicfile.Write(f.Path(name), data)
}

// WriteJSON is Write of indented JSON.
func (f *Folder) WriteJSON(name string, v any) error {
	data, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return fmt.Errorf("write %s: %w", f.Path(name), err)
	}
	return f.Write(name, append(data, '\n'))
}

// RolloutPath is where the rollouts of one label and step go.
func (f *Folder) RolloutPath(label string, step int) string {
	return f.Path("rollouts", fmt.Sprintf("%s_%06d.jsonl.zst", label, step))
}

// AppendMetrics adds a step's line and makes it durable.
func (f *Folder) AppendMetrics(line []byte) error {
	path := f.Path("metrics.jsonl")
	w, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
	if err != nil {
		return fmt.Errorf("append metrics: %w", err)
	}
	_, err = w.Write(append(bytes.TrimRight(line, "\n"), '\n'))
	if err == nil {
		err = w.Sync()
	}
	if closing := w.Close(); err == nil {
		err = closing
	}
	if err != nil {
		return fmt.Errorf("append to %s: %w", path, err)
	}
	return nil
}

// Cut removes what a crash may have left of steps after the given one: metrics lines, rollout files, sync
// folders, summaries and temporary files. Step -1 leaves nothing.
func (f *Folder) Cut(step int) error {
	for _, cut := range []func(int) error{f.cutMetrics, f.cutRollouts, f.cutRouter, f.cutTemporary} {
		if err := cut(step); err != nil {
			return fmt.Errorf("cut run folder %s back to step %d: %w", f.Dir, step, err)
		}
	}
	return nil
}

func (f *Folder) cutMetrics(step int) error {
	path := f.Path("metrics.jsonl")
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	kept, err := metricsUpTo(data, step)
	if err != nil {
		return fmt.Errorf("%s:%w", path, err)
	}
	if bytes.Equal(kept, data) {
		return nil
	}
	return atomicfile.Write(path, kept)
}

// metricsUpTo keeps the lines of steps up to the given one. A line that cannot be read is what a crash left when it is the
// last; before that it is damage, which is not thrown away in silence. The error begins with the line's number.
func metricsUpTo(data []byte, step int) ([]byte, error) {
	var kept []byte
	rest := bytes.TrimSuffix(data, []byte("\n"))
	for number := 1; len(rest) > 0; number++ {
		line, after, more := bytes.Cut(rest, []byte("\n"))
		var at struct {
			Step *int `json:"step"`
		}
		if json.Unmarshal(line, &at) != nil || at.Step == nil {
			if more {
				return nil, fmt.Errorf("%d: not a line of metrics; remove or mend it, then resume", number)
			}
			break
		}
		if *at.Step > step {
			break
		}
		kept = append(append(kept, line...), '\n')
		rest = after
	}
	return kept, nil
}

func (f *Folder) cutRollouts(step int) error {
	return f.cutNumbered("rollouts", func(label string, n int) bool { return n > step || label == "after" })
}

func (f *Folder) cutRouter(step int) error {
	return f.cutNumbered("router", func(_ string, n int) bool { return n > step })
}

// cutNumbered removes the files LABEL_N.* of a subfolder that gone picks.
func (f *Folder) cutNumbered(sub string, gone func(label string, n int) bool) error {
	entries, err := os.ReadDir(f.Path(sub))
	if err != nil {
		return err
	}
	for _, e := range entries {
		stem, _, _ := strings.Cut(e.Name(), ".")
		label, number, ok := strings.Cut(stem, "_")
		n, bad := strconv.Atoi(number)
		if ok && bad == nil && gone(label, n) {
			if err := os.RemoveAll(f.Path(sub, e.Name())); err != nil {
				return err
			}
		}
	}
	return nil
}

func (f *Folder) cutTemporary(int) error {
	for _, sub := range []string{".", "pool", "rollouts", "router", "checkpoints", "sync"} {
		entries, err := os.ReadDir(f.Path(sub))
		if err != nil {
			return err
		}
		for _, e := range entries {
			if strings.HasPrefix(e.Name(), ".") && strings.Contains(e.Name(), ".tmp") {
				if err := os.RemoveAll(f.Path(sub, e.Name())); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// Steps lists the numbers N of the folders SUB/step_N, ascending.
func (f *Folder) Steps(sub string) ([]int, error) {
	entries, err := os.ReadDir(f.Path(sub))
	if err != nil {
		return nil, err
	}
	var out []int
	for _, e := range entries {
		if number, ok := strings.CutPrefix(e.Name(), "step_"); ok {
			if n, err := strconv.Atoi(number); err == nil && n >= 0 {
				out = append(out, n)
			}
		}
	}
	sort.Ints(out)
	return out, nil
}

// StepDir is the folder SUB/step_N.
func (f *Folder) StepDir(sub string, step int) string {
	return f.Path(sub, fmt.Sprintf("step_%d", step))
}

// PutStep makes SUB/step_N: fill writes into a temporary folder, which is fsynced and renamed. An older folder
// of that name is replaced.
func (f *Folder) PutStep(sub string, step int, fill func(dir string) error) (err error) {
	final := f.StepDir(sub, step)
	tmp, err := os.MkdirTemp(f.Path(sub), fmt.Sprintf(".step_%d.tmp-", step))
	if err != nil {
		return fmt.Errorf("write %s: %w", final, err)
	}
	defer func() {
		if err != nil {
			os.RemoveAll(tmp)
			err = fmt.Errorf("write %s: %w", final, err)
		}
	}()
	if err := os.Chmod(tmp, 0o755); err != nil {
		return err
	}
	if err := fill(tmp); err != nil {
		return err
	}
	if err := syncTree(tmp); err != nil {
		return err
	}
	if err := os.RemoveAll(final); err != nil {
		return err
	}
	if err := os.Rename(tmp, final); err != nil {
		return err
	}
	return atomicfile.SyncDir(f.Path(sub))
}

// syncTree fsyncs the files of a flat folder and the folder.
func syncTree(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		file, err := os.Open(filepath.Join(dir, e.Name()))
		if err != nil {
			return err
		}
		err = file.Sync()
		file.Close()
		if err != nil {
			return err
		}
	}
	return atomicfile.SyncDir(dir)
}

// Prune keeps the last so many folders of SUB; 0 keeps all.
func (f *Folder) Prune(sub string, keep int) error {
	steps, err := f.Steps(sub)
	if err != nil || keep == 0 {
		return err
	}
	for _, n := range steps[:max(0, len(steps)-keep)] {
		// The name goes first, so that a folder half removed is never taken for a checkpoint.
		gone := f.Path(sub, fmt.Sprintf(".step_%d.tmp-gone", n))
		if err := os.Rename(f.StepDir(sub, n), gone); err != nil {
			return fmt.Errorf("prune %s: %w", sub, err)
		}
		if err := os.RemoveAll(gone); err != nil {
			return fmt.Errorf("prune %s: %w", sub, err)
		}
	}
	return nil
}

// LastCheckpoint is the newest checkpoint of a run folder that may belong to a run still at work.
func LastCheckpoint(dir string) (string, error) {
	f := &Folder{Dir: dir}
	steps, err := f.Steps("checkpoints")
	if err != nil {
		return "", fmt.Errorf("run folder %s: %w", dir, err)
	}
	if len(steps) == 0 {
		return "", fmt.Errorf("run folder %s has no checkpoint yet", dir)
	}
	return f.StepDir("checkpoints", steps[len(steps)-1]), nil
}
