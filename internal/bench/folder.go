// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// Writable checks that a folder for results can be made or written to, and leaves nothing behind. Otherwise a
// run would fail after all its measurements.
func Writable(dir string) error {
	if dir == "" {
		return nil
	}
	place := filepath.Clean(dir)
	for _, err := os.Stat(place); errors.Is(err, fs.ErrNotExist) && place != filepath.Dir(place); _, err = os.Stat(place) {
		place = filepath.Dir(place) // the first folder that exists
	}
	trial, err := os.MkdirTemp(place, ".xsched-")
	if err != nil {
		return fmt.Errorf("--out %s can't be written: %w; use a writable directory", dir, reason(err))
	}
	return os.Remove(trial)
}

// reason is an error of a file without the name of the file.
func reason(err error) error {
	if at, ok := errors.AsType[*fs.PathError](err); ok {
		return at.Err
	}
	return err
}

// settled is the age from which an unlocked folder is a leftover. A younger one may not be locked yet.
const settled = time.Minute

// Folder makes a private temporary folder and removes those that killed runs of this user left
// behind. A lock on the folder, which the kernel releases with the process, marks it as used.
func Folder(prefix string) (dir string, remove func(), err error) {
	leftovers, _ := filepath.Glob(filepath.Join(os.TempDir(), prefix+"*"))
	for _, old := range leftovers {
		sweep(old)
	}
	if dir, err = os.MkdirTemp("", prefix); err != nil {
		return "", nil, fmt.Errorf("create a private directory: %w; set TMPDIR to a writable one", err)
	}
	lock, err := lockFolder(dir)
	if err != nil {
		_ = os.RemoveAll(dir)
		return "", nil, fmt.Errorf("lock %s: %w", dir, err)
	}
	return dir, func() {
		_ = os.RemoveAll(dir)
		_ = unix.Close(lock)
	}, nil
}

func lockFolder(dir string) (int, error) {
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	if err := unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// sweep removes a folder of this user that nobody has locked.
func sweep(dir string) {
	fd, err := lockFolder(dir)
	if err != nil {
		return
	}
	defer func() { _ = unix.Close(fd) }()
	var info unix.Stat_t
	if unix.Fstat(fd, &info) != nil || int(info.Uid) != os.Geteuid() || time.Since(time.Unix(info.Mtim.Unix())) < settled {
		return
	}
	_ = os.RemoveAll(dir)
}
