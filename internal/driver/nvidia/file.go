// SPDX-License-Identifier: Apache-2.0

package nvidia

import (
	"errors"
	"sync"

	"golang.org/x/sys/unix"
)

// errClosed reports an operation after the process ended.
var errClosed = errors.New("the process has ended")

// File is a duplicate of a process's control file. An open duplicate keeps the process's GPU memory
// allocated, so Close must take effect at once. No call may reach a file that reuses the descriptor
// number. Every call therefore holds a use, and the last use closes the descriptor.
type File struct {
	mu     sync.Mutex
	fd     int
	uses   int
	closed bool
}

// NewFile takes ownership of fd.
func NewFile(fd int) *File { return &File{fd: fd} }

// use calls f with the descriptor, unless the file is closed.
func (f *File) use(call func(fd int) error) error {
	if !f.hold() {
		return errClosed
	}
	defer f.release()
	return call(f.fd)
}

// hold keeps the descriptor open until release; false: the file is closed.
func (f *File) hold() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return false
	}
	f.uses++
	return true
}

func (f *File) release() {
	f.mu.Lock()
	f.uses--
	last := f.closed && f.uses == 0
	f.mu.Unlock()
	if last {
		_ = unix.Close(f.fd)
	}
}

// Close rejects new calls and closes the descriptor, now or with the last call in flight.
func (f *File) Close() error {
	f.mu.Lock()
	if f.closed {
		f.mu.Unlock()
		return nil
	}
	f.closed = true
	idle := f.uses == 0
	f.mu.Unlock()
	if idle {
		return unix.Close(f.fd)
	}
	return nil
}

// closeUnused closes a file that may be nil.
func (f *File) closeUnused() {
	if f != nil {
		_ = f.Close()
	}
}

// dup returns a raw descriptor. An os.File could change the blocking mode, which the application
// shares.
func (f *File) dup() (n int, err error) {
	err = f.use(func(fd int) error {
		n, err = unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 3)
		return err
	})
	return n, err
}
