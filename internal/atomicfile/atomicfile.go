// Package atomicfile replaces files so that a crash leaves the old content or the new, never a part.
package atomicfile

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// Write puts data into path: written to a temporary file in the same folder, fsynced, renamed over path, and the
// folder fsynced. On an error path is unchanged and nothing is left beside it. A path that names something other than
// a file, such as a folder or a device, is an error: a rename would put a file in its place.
func Write(path string, data []byte) error {
	return WriteFunc(path, func(w io.Writer) error {
		_, err := w.Write(data)
		return err
	})
}

// WriteFunc is Write for content that fill produces.
func WriteFunc(path string, fill func(io.Writer) error) (err error) {
	dir := filepath.Dir(path)
	f, err := create(path)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			f.Close()
			os.Remove(f.Name())
			err = fmt.Errorf("write %s: %w", path, cause(err))
		}
	}()
	if err := fill(f); err != nil {
		return err
	}
	if err := f.Chmod(0o644); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return err
	}
	return SyncDir(dir)
}

// Check says whether path can be written at all, before the work whose result goes there. It leaves nothing behind.
func Check(path string) error {
	f, err := create(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Close(), os.Remove(f.Name()))
}

// create makes the temporary file of path.
func create(path string) (*os.File, error) {
	if old, err := os.Stat(path); err == nil && !old.Mode().IsRegular() {
		return nil, fmt.Errorf("write %s: it is not a regular file; give another name", path)
	}
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".tmp-*")
	if err != nil {
		return nil, fmt.Errorf("write %s: make a file in its folder: %w", path, cause(err))
	}
	return f, nil
}

// cause drops the temporary file's name from an error of the file itself: the caller knows another. What fill wraps
// stays as it is.
func cause(err error) error {
	switch e := err.(type) {
	case *fs.PathError:
		return e.Err
	case *os.LinkError:
		return e.Err
	}
	return err
}

// SyncDir makes renames and removals in dir durable.
func SyncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}
