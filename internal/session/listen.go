// SPDX-License-Identifier: Apache-2.0

package session

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"xsched/internal/identity"
)

// ErrRunning reports that another daemon serves the directory.
var ErrRunning = errors.New("another xsched serve is running")

// Lock makes this daemon the only one on a directory until it ends. Unlike a PID file, a file lock
// can't be stale.
type Lock struct {
	file *os.File
	path string
}

// TakeLock locks dir, or returns an error with the PID of the owner. Other users may not open the
// file, because they could lock it.
func TakeLock(dir string) (*Lock, error) {
	path := filepath.Join(dir, "lock")
	for {
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, lockMode)
		if err != nil {
			return nil, fmt.Errorf("lock %s: %w", dir, err)
		}
		if err := makePrivate(f); err != nil {
			_ = f.Close()
			return nil, fmt.Errorf("lock %s: %w", dir, err)
		}
		if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
			defer func() { _ = f.Close() }()
			if !errors.Is(err, unix.EWOULDBLOCK) {
				return nil, fmt.Errorf("lock %s: %w", dir, err)
			}
			b := make([]byte, 32)
			n, _ := f.ReadAt(b, 0)
			return nil, running(strings.TrimSpace(string(b[:n])), dir)
		}
		// The previous daemon may have removed the file between open and lock. Then the lock is on
		// an unlinked file.
		mine, err1 := f.Stat()
		there, err2 := os.Lstat(path)
		if err1 != nil || err2 != nil || !os.SameFile(mine, there) {
			_ = f.Close()
			continue
		}
		_ = f.Truncate(0)
		_, _ = f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
		return &Lock{f, path}, nil
	}
}

const lockMode = 0o600

// makePrivate checks that an existing file belongs to this user, and removes the access of others.
func makePrivate(f *os.File) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return fmt.Errorf("stat %s: %w", f.Name(), err)
	}
	switch {
	case st.Mode&unix.S_IFMT != unix.S_IFREG:
		return fmt.Errorf("%s is not a regular file; remove it", f.Name())
	case int(st.Uid) != os.Geteuid():
		return fmt.Errorf("%s belongs to uid %d, not %d; remove it", f.Name(), st.Uid, os.Geteuid())
	case st.Mode&0o7777 == lockMode:
		return nil
	}
	if err := f.Chmod(lockMode); err != nil {
		return fmt.Errorf("set mode of %s: %w", f.Name(), err)
	}
	return nil
}

func running(pid, dir string) error {
	if pid == "" {
		pid = "unknown"
	}
	return fmt.Errorf("%w (pid %s) on %s; stop it, or choose another directory with XSCHED_DIR", ErrRunning, pid, dir)
}

// Held reports whether the lock still keeps other daemons away. It does not once somebody has deleted the
// directory or the file: another daemon can lock a new one.
func (l *Lock) Held() bool {
	mine, err := l.file.Stat()
	if errors.Is(err, os.ErrClosed) {
		return false // released
	}
	if err != nil {
		return true // not known
	}
	there, err := os.Lstat(l.path)
	if errors.Is(err, os.ErrNotExist) {
		return false
	}
	return err != nil || os.SameFile(mine, there)
}

// Release releases the lock. It removes the file while it is still locked. A second call does nothing.
func (l *Lock) Release() {
	if l.Held() {
		_ = os.Remove(l.path)
	}
	_ = l.file.Close()
}

// Listen opens a socket at path. It replaces a stale socket; a socket in use or another file is an
// error.
// Preconditions: the caller has the directory's lock.
func Listen(network, path string, mode os.FileMode) (*net.UnixListener, error) {
	if err := RemoveStale(network, path); err != nil {
		return nil, err
	}
	l, err := net.ListenUnix(network, &net.UnixAddr{Name: path, Net: network})
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	if err := os.Chmod(path, mode); err != nil {
		_ = l.Close()
		return nil, fmt.Errorf("set mode of %s: %w", path, err)
	}
	return l, nil
}

// RemoveStale removes a socket that nobody listens on. A socket in use or another file is an error.
func RemoveStale(network, path string) error {
	st, err := os.Lstat(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("stat %s: %w", path, err)
	}
	if st.Mode()&os.ModeSocket == 0 {
		return fmt.Errorf("listen on %s: the path is not a socket; remove it", path)
	}
	dialer := net.Dialer{Timeout: helloTime}
	c, err := dialer.Dial(network, path)
	switch {
	case err == nil:
		peer, _ := c.(*net.UnixConn)
		pid := peerPID(peer)
		_ = c.Close()
		// The helpers of a killed daemon keep its sockets open for a moment.
		if !hasEnded(pid) {
			return running(pid, filepath.Dir(path))
		}
	// Only a socket without a listener is stale. Keep sockets of another type or without access.
	case !errors.Is(err, unix.ECONNREFUSED):
		return fmt.Errorf("listen on %s: the socket is in use: %w", path, err)
	}
	if err := os.Remove(path); err != nil {
		return fmt.Errorf("remove stale socket %s: %w", path, err)
	}
	return nil
}

// hasEnded reports whether a process has certainly ended.
func hasEnded(pid string) bool {
	n, err := strconv.Atoi(pid)
	if err != nil || n == 0 { // 0: in another PID namespace
		return false
	}
	pidfd, err := unix.PidfdOpen(n, 0)
	if err != nil {
		return errors.Is(err, unix.ESRCH)
	}
	defer func() { _ = unix.Close(pidfd) }()
	return identity.Ended(pidfd)
}

// peerPID returns the PID of the process that listens.
func peerPID(c *net.UnixConn) string {
	raw, err := c.SyscallConn()
	if err != nil {
		return ""
	}
	pid := ""
	_ = raw.Control(func(fd uintptr) {
		if cred, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
			pid = strconv.Itoa(int(cred.Pid))
		}
	})
	return pid
}
