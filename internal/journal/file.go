// SPDX-License-Identifier: Apache-2.0

package journal

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"xsched/internal/control"
)

// Size of the audit log: FileBytes in each of Files files. FILE is the newest, FILE.1 the one before.
const (
	FileBytes = 8 << 20
	Files     = 4
	fileQueue = 1024 // entries between the daemon and the disk
	maxLine   = 8 << 10
)

// File is an audit log in JSON Lines. A goroutine writes it, so that a slow disk delays nobody;
// entries that do not fit the queue are counted, and the count is written.
type File struct {
	path  string
	bytes int64 // of one file
	log   *slog.Logger
	queue chan control.JournalEntry
	quit  chan struct{}
	done  chan struct{}
	once  sync.Once

	dropped atomic.Uint64
	out     *os.File
	size    int64
	failed  bool
	stuck   bool // the last rotation failed
}

// OpenFile opens or creates the audit log at a path. It refuses anything but a regular file of the
// daemon's user: a symbolic link could have been planted by another one.
func OpenFile(path string, log *slog.Logger) (*File, error) {
	return openFile(path, FileBytes, log)
}

func openFile(path string, bytes int64, log *slog.Logger) (*File, error) {
	f := &File{path: path, bytes: bytes, log: log, queue: make(chan control.JournalEntry, fileQueue), quit: make(chan struct{}), done: make(chan struct{})}
	if err := f.open(); err != nil {
		return nil, fmt.Errorf("open audit log: %w", err)
	}
	go f.run()
	return f, nil
}

func (f *File) open() error {
	out, size, err := openLog(f.path)
	if err != nil {
		return err
	}
	f.out, f.size = out, size
	return f.mend()
}

func openLog(path string) (_ *os.File, size int64, _ error) {
	out, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_APPEND|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o600)
	if errors.Is(err, unix.ELOOP) {
		return nil, 0, fmt.Errorf("%s is a symbolic link; remove it or choose another file", path)
	}
	if err != nil {
		return nil, 0, err
	}
	info, err := out.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is not a regular file; choose another one", path)
	}
	if err == nil {
		var st unix.Stat_t
		if err = unix.Fstat(int(out.Fd()), &st); err == nil && int(st.Uid) != os.Geteuid() {
			err = fmt.Errorf("%s belongs to uid %d; remove it or choose another file", path, st.Uid)
		}
	}
	if err != nil {
		_ = out.Close()
		return nil, 0, err
	}
	return out, info.Size(), nil
}

// mend ends a line that was cut off, so that the next one is readable.
func (f *File) mend() error {
	if f.size == 0 {
		return nil
	}
	var last [1]byte
	if _, err := f.out.ReadAt(last[:], f.size-1); err != nil || last[0] == '\n' {
		return err
	}
	n, err := f.out.Write([]byte("\n"))
	f.size += int64(n)
	return err
}

// Write queues an entry. It never blocks.
func (f *File) Write(e control.JournalEntry) {
	select {
	case f.queue <- e:
	default:
		f.dropped.Add(1)
	}
}

// Close writes what is queued, for at most limit.
func (f *File) Close(limit time.Duration) {
	f.once.Do(func() { close(f.quit) })
	select {
	case <-f.done:
	case <-time.After(limit): // the disk does not answer
	}
}

func (f *File) run() {
	defer close(f.done)
	for {
		select {
		case e := <-f.queue:
			f.write(e)
		case <-f.quit:
			for range len(f.queue) {
				f.write(<-f.queue)
			}
			_ = f.out.Close()
			return
		}
	}
}

// write writes an entry, and how many were dropped since the last one.
func (f *File) write(e control.JournalEntry) {
	f.put(e)
	if n := f.dropped.Swap(0); n > 0 {
		f.put(control.JournalEntry{
			TimeNS: e.TimeNS, Kind: control.JournalSuppressed, UID: os.Geteuid(), Count: n,
			Text: fmt.Sprintf("%d entries were not written, because the disk was too slow", n),
		})
	}
}

func (f *File) put(e control.JournalEntry) {
	line, err := json.Marshal(e)
	if err == nil {
		line = append(line, '\n')
		if f.size > 0 && f.size+int64(len(line)) > f.bytes {
			err = f.turn(int64(len(line)))
		}
	}
	if err == nil {
		var n int
		n, err = f.out.Write(line)
		f.size += int64(n)
	}
	if failed := err != nil; failed != f.failed {
		if f.failed = failed; failed {
			f.log.Error("audit log is not written", "file", f.path, "err", err)
		} else {
			f.log.Info("audit log is written again", "file", f.path)
		}
	}
}

// turn begins a new file. If that fails, the current one goes on and may have the size of all.
func (f *File) turn(more int64) error {
	err := f.rotate()
	if stuck := err != nil; stuck != f.stuck {
		if f.stuck = stuck; stuck {
			f.log.Warn("audit log can't begin a new file and continues with the current one; make its folder writable", "file", f.path, "err", err)
		}
	}
	if f.size+more <= Files*f.bytes {
		return nil
	}
	return err
}

// rotate renames the files and begins a new one. The new one is there before anything is renamed: a
// failure that lasts must not push out the older ones.
func (f *File) rotate() error {
	next := f.path + ".new"
	if err := os.Remove(next); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	out, size, err := openLog(next)
	if err != nil {
		return err
	}
	for i := Files - 1; i > 0 && err == nil; i-- {
		if err = os.Rename(numbered(f.path, i-1), numbered(f.path, i)); errors.Is(err, os.ErrNotExist) {
			err = nil
		}
	}
	if err == nil {
		err = os.Rename(next, f.path)
	}
	if err != nil {
		_, _ = out.Close(), os.Remove(next)
		return err
	}
	old := f.out
	f.out, f.size = out, size
	return old.Close()
}

func numbered(path string, i int) string {
	if i == 0 {
		return path
	}
	return fmt.Sprintf("%s.%d", path, i)
}

// ReadFiles calls f for each entry of the audit log at a path, oldest first. Lines that are no entries
// are counted: a crash may have cut one off.
func ReadFiles(path string, f func(control.JournalEntry)) (broken int, err error) {
	found := false
	for i := Files - 1; i >= 0; i-- {
		file, err := os.Open(numbered(filepath.Clean(path), i))
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return broken, err
		}
		found = true
		n, err := read(file, f)
		broken += n
		_ = file.Close()
		if err != nil {
			return broken, fmt.Errorf("read %s: %w", file.Name(), err)
		}
	}
	if !found {
		return 0, fmt.Errorf("there is no audit log at %s; start the daemon with --audit FILE", path)
	}
	return broken, nil
}

func read(r io.Reader, f func(control.JournalEntry)) (broken int, err error) {
	lines := bufio.NewReaderSize(r, maxLine)
	for {
		line, err := lines.ReadSlice('\n')
		if errors.Is(err, bufio.ErrBufferFull) {
			broken++
			for errors.Is(err, bufio.ErrBufferFull) {
				_, err = lines.ReadSlice('\n')
			}
			line = nil
		}
		if len(bytes.TrimSpace(line)) > 0 {
			var e control.JournalEntry
			if json.Unmarshal(line, &e) != nil || e.Kind == "" {
				broken++
			} else {
				f(e)
			}
		}
		if errors.Is(err, io.EOF) {
			return broken, nil
		}
		if err != nil {
			return broken, err
		}
	}
}
