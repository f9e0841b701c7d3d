// SPDX-License-Identifier: Apache-2.0

package control

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"xsched/internal/identity"
)

// Names in the daemon's directory. The shim knows ClientDir and ClientSocket too (core/options.c).
//
// ClientDir is for containers: a folder that can be mounted alone. It has a ClientSocket and a
// ControlSocket of its own. Its ClientSocket is also in the directory itself, where earlier shims look.
const (
	ClientDir     = "client"
	ClientSocket  = "xsched.sock" // the shim's protocol
	ControlSocket = "control.sock"
	lockFile      = "lock" // with the PID (session.TakeLock)
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

// CheckSocketPath refuses a path that the address of a unix socket can't hold.
func CheckSocketPath(path string) error {
	if len(path) <= maxSocketPath {
		return nil
	}
	return &Error{
		Kind: ErrInvalid, Cause: fmt.Sprintf("the socket path %s has %d bytes, at most %d are possible", path, len(path), maxSocketPath),
		Remedy: "use a shorter directory with --dir or XSCHED_DIR",
	}
}

// PrepareDir creates the directory and ClientDir in it. An existing one must be a directory, not a
// link, and belong to uid; its mode is corrected. Everybody may enter root's directory, only the user
// a user's. No other user may be able to replace it.
func PrepareDir(dir string, uid int) error {
	if err := CheckSocketPath(filepath.Join(dir, ClientDir, ControlSocket)); err != nil {
		return err
	}
	mode := os.FileMode(0o700)
	if uid == 0 {
		mode = 0o755
	}
	// Missing parents get the usual mode.
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return fmt.Errorf("create %s: %w", filepath.Dir(dir), err)
	}
	if err := checkParents(filepath.Dir(dir), uid); err != nil {
		return err
	}
	if err := prepare(dir, uid, mode); err != nil {
		return err
	}
	return prepare(filepath.Join(dir, ClientDir), uid, mode)
}

// checkParents refuses a folder in which another user could replace the daemon's directory.
func checkParents(dir string, uid int) error {
	real, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return fmt.Errorf("use %s: %w", dir, err)
	}
	if real, err = filepath.Abs(real); err != nil {
		return fmt.Errorf("use %s: %w", dir, err)
	}
	for ; ; real = filepath.Dir(real) {
		var st unix.Stat_t
		if err := unix.Lstat(real, &st); err != nil {
			return fmt.Errorf("stat %s: %w", real, err)
		}
		refused := func(why string) error {
			return &Error{Kind: ErrNotAllowed, Cause: fmt.Sprintf("%s %s, who could replace the daemon's directory", real, why), Remedy: "use another with --dir or XSCHED_DIR"}
		}
		switch owner := int(st.Uid); {
		case owner != 0 && owner != uid && !identity.Unmapped(owner):
			return refused(fmt.Sprintf("belongs to uid %d", owner))
		case st.Mode&0o002 != 0 && st.Mode&unix.S_ISVTX == 0:
			return refused("is writable by every user")
		case real == "/":
			return nil
		}
	}
}

func prepare(dir string, uid int, mode os.FileMode) error {
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

// Owner returns the PID of the daemon that has locked dir (session.TakeLock), or 0 if there is none or it
// can't be told. It takes no lock, which could refuse a daemon that starts.
func Owner(dir string) int {
	path := filepath.Join(dir, lockFile)
	text, err := os.ReadFile(path)
	if err != nil {
		return 0
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil || pid <= 0 {
		return 0
	}
	lock, err := os.Lstat(path)
	if err != nil {
		return 0
	}
	// A daemon that was killed leaves the file, and its PID may be another process by now.
	folder := fmt.Sprintf("/proc/%d/fd", pid)
	open, err := os.ReadDir(folder)
	if err != nil {
		return 0
	}
	for _, fd := range open {
		if file, err := os.Stat(filepath.Join(folder, fd.Name())); err == nil && os.SameFile(file, lock) {
			return pid
		}
	}
	return 0
}
