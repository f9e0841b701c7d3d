// SPDX-License-Identifier: Apache-2.0

package control

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Names in the daemon's directory. The shim knows ClientSocket too (see wire.h).
const (
	ClientSocket  = "xsched.sock" // the shim's protocol
	ControlSocket = "control.sock"
	LockFile      = "lock"

	// A virtual device listens on one of these; VirtualKFDRoot holds its sysfs tree.
	VirtualSocket    = "vgpu.sock"
	VirtualKFDSocket = "kfd.sock"
	VirtualKFDRoot   = "kfd"
)

// DefaultDir is where the sockets are when nobody says otherwise.
func DefaultDir(uid int, getenv func(string) string) string {
	if d := getenv("XSCHED_DIR"); d != "" {
		return d
	}
	if uid == 0 {
		return "/run/xsched"
	}
	if d := getenv("XDG_RUNTIME_DIR"); d != "" {
		return filepath.Join(d, "xsched")
	}
	return fmt.Sprintf("/tmp/xsched-%d", uid)
}

// StateDir is where a daemon keeps what it has learnt over reboots: $XSCHED_STATE,
// /var/lib/xsched for root, else in the user's home; empty: nowhere.
func StateDir(uid int, getenv func(string) string) string {
	switch {
	case getenv("XSCHED_STATE") != "":
		return getenv("XSCHED_STATE")
	case uid == 0:
		return "/var/lib/xsched"
	case getenv("XDG_STATE_HOME") != "":
		return filepath.Join(getenv("XDG_STATE_HOME"), "xsched")
	case getenv("HOME") != "":
		return filepath.Join(getenv("HOME"), ".local", "state", "xsched")
	}
	return ""
}

// PrepareDir makes the directory, or checks that one that is there is safe: a
// directory and no link, ours, and not writable by others. A root daemon's is open
// for everybody to look into, a user's is closed.
func PrepareDir(dir string, uid int) error {
	mode := os.FileMode(0o700)
	if uid == 0 {
		mode = 0o755
	}
	// The parents are the administrator's; only the last one is made like this.
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return fmt.Errorf("create %s: %w", filepath.Dir(dir), err)
	}
	if err := os.Mkdir(dir, mode); err != nil && !errors.Is(err, os.ErrExist) {
		return fmt.Errorf("create %s: %w", dir, err)
	}
	// Through a descriptor, so that what is checked is what is used.
	fd, err := unix.Open(dir, unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open %s: %w (it must be a directory and no link)", dir, err)
	}
	defer func() { _ = unix.Close(fd) }()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return fmt.Errorf("stat %s: %w", dir, err)
	}
	if int(st.Uid) != uid {
		return fmt.Errorf("use %s: it belongs to uid %d, not %d; remove it or choose another with XSCHED_DIR", dir, st.Uid, uid)
	}
	if os.FileMode(st.Mode)&0o777 != mode {
		if err := unix.Fchmod(fd, uint32(mode)); err != nil {
			return fmt.Errorf("set mode of %s: %w", dir, err)
		}
	}
	return nil
}
