// Package linelog keeps files of lines that are appended one by one, each durable before anything rests on it. What a crash
// leaves is whole lines and at most a part of one, which does not count and is cut off.
package linelog

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"harness-s/internal/atomicfile"
)

// ErrTooLong says that a line is longer than it may be.
var ErrTooLong = errors.New("is too long")

// Read hands each whole line of r, without its end, to line, with its number from 1, and returns how many bytes they are. A
// line of more than max bytes is ErrTooLong; an error of line ends the reading. The text is line's to keep.
func Read(r io.Reader, max int, line func(number int, text []byte) error) (size int64, err error) {
	b := bufio.NewReaderSize(r, 1<<20)
	for number := 1; ; number++ {
		text, err := readLine(b, max)
		if err == io.EOF {
			return size, nil // what is left of a line has no end
		}
		if errors.Is(err, ErrTooLong) {
			err = fmt.Errorf("line %d %w", number, err)
		}
		if err != nil {
			return 0, err
		}
		size += int64(len(text))
		if err := line(number, text[:len(text)-1]); err != nil {
			return 0, err
		}
	}
}

// readLine reads a line of at most max bytes and its end.
func readLine(b *bufio.Reader, max int) ([]byte, error) {
	var line []byte
	for {
		part, err := b.ReadSlice('\n')
		line = append(line, part...)
		if len(line) > max+1 {
			return nil, ErrTooLong
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			return line, err
		}
	}
}

// Log is a file open for appending. It is used by one goroutine at a time.
type Log struct {
	f      *os.File
	failed error // of a write: half a line may be in the file, and what came behind it would be lost with it
}

// Open opens or makes the file, reads it as Read does and cuts off what is behind its last whole line.
func Open(path string, max int, line func(number int, text []byte) error) (*Log, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	size, err := Read(f, max, line)
	if err == nil {
		err = f.Truncate(size)
	}
	if err == nil {
		_, err = f.Seek(size, io.SeekStart)
	}
	if err == nil {
		err = atomicfile.SyncDir(filepath.Dir(path)) // the file's name, when it is new
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return &Log{f: f}, nil
}

// Append makes a line durable. After a write that failed it refuses with the same error.
func (l *Log) Append(text []byte) error {
	if l.failed != nil {
		return l.failed
	}
	_, err := l.f.Write(append(text, '\n'))
	if err == nil {
		err = l.f.Sync()
	}
	l.failed = err
	return err
}

// Close closes the file.
func (l *Log) Close() error { return l.f.Close() }
