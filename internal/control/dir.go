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
)

// maxSocketPath is the largest path in a unix socket address.
const maxSocketPath = 107

// DefaultDir returns the default directory of the sockets.
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

// StateDir returns the directory for results that survive a reboot: $XSCHED_STATE,
// /var/lib/xsched for root, else one in the user's home; empty: none.
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

// PrepareDir creates the directory. An existing one must be a directory, not a link, and belong to
// uid; its mode is corrected. Everybody may enter root's directory, only the user a user's.
func PrepareDir(dir string, uid int) error {
	if n := len(filepath.Join(dir, ControlSocket)); n > maxSocketPath {
		return &Error{
			Kind: ErrInvalid, Cause: fmt.Sprintf("the socket path in %s has %d bytes, at most %d are possible", dir, n, maxSocketPath),
			Remedy: "use a shorter directory with --dir or XSCHED_DIR",
		}
	}
	mode := os.FileMode(0o700)
	if uid == 0 {
		mode = 0o755
	}
	// Missing parents get the usual mode.
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return fmt.Errorf("create %s: %w", filepath.Dir(dir), err)
	}
	if err := os.Mkdir(dir, mode); err != nil && !errors.Is(err, os.ErrExist) {
		return fmt.Errorf("create %s: %w", dir, err)
	}
	// Check through a descriptor, so that the directory can't be replaced in between.
	fd, err := unix.Open(dir, unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open %s: %w (must be a directory and not a link)", dir, err)
	}
	defer func() { _ = unix.Close(fd) }()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return fmt.Errorf("stat %s: %w", dir, err)
	}
	if int(st.Uid) != uid {
		return fmt.Errorf("use %s: owned by uid %d, not %d; remove it or set XSCHED_DIR", dir, st.Uid, uid)
	}
	if os.FileMode(st.Mode)&0o777 != mode {
		if err := unix.Fchmod(fd, uint32(mode)); err != nil {
			return fmt.Errorf("set mode of %s: %w", dir, err)
		}
	}
	return nil
}
