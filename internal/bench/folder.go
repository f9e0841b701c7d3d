// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

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
