// SPDX-License-Identifier: Apache-2.0

package journal

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"

	"golang.org/x/sys/unix"

	"xsched/internal/atomicfile"
	"xsched/internal/control"
	"xsched/internal/planted"
)

// series is a log in several files of bounded size, of which path is the newest. One goroutine uses it.
type series struct {
	path  string
	bytes int64 // of one file
	log   *slog.Logger

	out    *os.File // nil: not opened yet
	size   int64
	failed bool
	cut    bool // the last line is not complete
	stuck  bool // the last rotation failed
}

func (f *series) open() error {
	out, size, err := openLog(f.path)
	if err != nil {
		return err
	}
	f.out, f.size, f.cut = out, size, false
	return f.mend()
}

func openLog(path string) (_ *os.File, size int64, _ error) {
	out, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_APPEND|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o600)
	if errors.Is(err, unix.ELOOP) {
		return nil, 0, fmt.Errorf("%s is a symbolic link; remove it or choose another file", path)
	}
	if err != nil {
		return nil, 0, fmt.Errorf("%w; choose a file in a folder that exists and is yours", err)
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
func (f *series) mend() error {
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

func (f *series) put(e control.JournalEntry) {
	if planted.Disk && f.failed {
		return
	}
	line, err := json.Marshal(e)
	if err == nil && f.out == nil {
		err = f.open()
	}
	if err == nil && f.cut {
		if err = f.mend(); err == nil {
			f.cut = false
		}
	}
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
		f.cut = n > 0 && n < len(line)
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
func (f *series) turn(more int64) error {
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
func (f *series) rotate() error {
	next := f.path + ".new"
	if err := os.Remove(next); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	out, size, err := openLog(next)
	if err != nil {
		return err
	}
	if err = atomicfile.Shift(f.path, Files); err == nil {
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

func (f *series) close() {
	if f.out != nil {
		_ = f.out.Close()
	}
}
