// SPDX-License-Identifier: Apache-2.0

package journal

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"xsched/internal/atomicfile"
	"xsched/internal/control"
)

// Size of the audit log: FileBytes in each of Files files. FILE is the newest, FILE.1 the one before.
// Entries that other users cause are in files of their own, FILE.users and so on, of the same size:
// they can't displace what administrators did.
const (
	FileBytes = 8 << 20
	Files     = 4
	maxLine   = 8 << 10

	fileQueue = 1024 // entries between the daemon and the disk
	userQueue = 768  // of these, for entries of other users
	ofUsers   = ".users"
)

// File is an audit log in JSON Lines. A goroutine writes it, so that a slow disk delays nobody;
// entries that do not fit the queue are counted, and the count is written.
type File struct {
	admin, users *series
	queue        chan line
	quit         chan struct{}
	done         chan struct{}
	once         sync.Once
	dropped      atomic.Uint64
}

// line is an entry on its way to the disk.
type line struct {
	control.JournalEntry
	byUser bool // and not by an administrator or the daemon
}

// OpenFile opens or creates the audit log at a path. It refuses anything but a regular file of the
// daemon's user: a symbolic link could have been planted by another one.
func OpenFile(path string, log *slog.Logger) (*File, error) {
	return openFile(path, FileBytes, log)
}

func openFile(path string, bytes int64, log *slog.Logger) (*File, error) {
	f := &File{
		admin: &series{path: path, bytes: bytes, log: log}, users: &series{path: path + ofUsers, bytes: bytes, log: log},
		queue: make(chan line, fileQueue), quit: make(chan struct{}), done: make(chan struct{}),
	}
	if err := f.admin.open(); err != nil {
		return nil, fmt.Errorf("open audit log: %w", err)
	}
	go f.run()
	return f, nil
}

// Write queues an entry; byUser: a user caused it, and not an administrator or the daemon. It never
// blocks. Preconditions: one goroutine at a time calls it.
func (f *File) Write(e control.JournalEntry, byUser bool) {
	if byUser && len(f.queue) >= userQueue {
		f.dropped.Add(1)
		return
	}
	select {
	case f.queue <- line{e, byUser}:
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
			f.admin.close()
			f.users.close()
			return
		}
	}
}

// write writes an entry, and how many were dropped since the last one.
func (f *File) write(l line) {
	if l.byUser {
		f.users.put(l.JournalEntry)
	} else {
		f.admin.put(l.JournalEntry)
	}
	if n := f.dropped.Swap(0); n > 0 {
		f.admin.put(control.JournalEntry{
			TimeNS: l.TimeNS, Kind: control.JournalSuppressed, UID: os.Geteuid(), Count: n,
			Text: fmt.Sprintf("%d entries were not written, because the disk was too slow", n),
		})
	}
}

// ReadFiles calls f for each entry of the audit log at a path, oldest first. Lines that are no entries
// are counted: a crash may have cut one off.
func ReadFiles(path string, f func(control.JournalEntry)) (broken int, err error) {
	path = filepath.Clean(path)
	if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) {
		return 0, fmt.Errorf("there is no audit log at %s; start the daemon with --audit FILE", path)
	}
	var failed error
	entries := func(path string) (next func() (control.JournalEntry, bool), stop func()) {
		return iter.Pull(func(yield func(control.JournalEntry) bool) {
			n, err := readSeries(path, yield)
			broken += n
			failed = errors.Join(failed, err)
		})
	}
	admins, stop := entries(path)
	defer stop()
	users, stop := entries(path + ofUsers)
	defer stop()
	a, more := admins()
	u, others := users()
	for more || others {
		if more && (!others || cmp.Or(cmp.Compare(a.TimeNS, u.TimeNS), cmp.Compare(a.Seq, u.Seq)) <= 0) {
			f(a)
			a, more = admins()
		} else {
			f(u)
			u, others = users()
		}
	}
	if errors.Is(failed, os.ErrPermission) {
		failed = fmt.Errorf("%w; use sudo", failed)
	}
	return broken, failed
}

// readSeries calls f for each entry of the files of a series until it returns false.
func readSeries(path string, f func(control.JournalEntry) bool) (broken int, err error) {
	for i := Files - 1; i >= 0; i-- {
		file, err := os.Open(atomicfile.Numbered(path, i))
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return broken, err
		}
		n, err := read(file, f)
		broken += n
		_ = file.Close()
		if errors.Is(err, errStopped) {
			return broken, nil
		}
		if err != nil {
			return broken, fmt.Errorf("read %s: %w", file.Name(), err)
		}
	}
	return broken, nil
}

var errStopped = errors.New("the reader has stopped")

func read(r io.Reader, f func(control.JournalEntry) bool) (broken int, err error) {
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
			} else if !f(e) {
				return broken, errStopped
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
