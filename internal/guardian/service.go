// SPDX-License-Identifier: Apache-2.0

package guardian

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"xsched/internal/driver"
	"xsched/internal/health"
)

// ServiceSocket is the service's socket in the runtime directory.
const ServiceSocket = "guardian.sock"

// ServiceOptions configure Serve.
type ServiceOptions struct {
	Dir     string // the daemon's runtime directory
	Drivers []driver.Driver
	Version string
	Log     *slog.Logger
	// Ready is called once daemons can connect; may be nil.
	Ready func()
	// Health gets the service's parts; nil: a monitor of its own.
	Health *health.Monitor
	stuck  time.Duration // limit of the parts; 0: stuckLimit
}

// errReplace ends a service of another release than its daemon, so that the service manager starts
// the installed one.
var errReplace = errors.New("the daemon is of another release")

// Serve runs the guardian as a service, apart from the daemon and its cgroup, until ctx ends. First it
// restores what a daemon and a guardian left that died together.
func Serve(ctx context.Context, o ServiceOptions) error {
	if o.Health == nil {
		o.Health = &health.Monitor{}
	}
	s := &service{ServiceOptions: o, parts: newParts(o.Health, cmp.Or(o.stuck, stuckLimit)), recovery: Recover(o.Dir, o.Drivers, o.Log)}
	path := filepath.Join(o.Dir, ServiceSocket)
	sock, err := listen(path)
	if err != nil {
		return err
	}
	own, err := os.Lstat(path)
	if err != nil {
		_ = unix.Close(sock)
		return fmt.Errorf("listen on %s: %w", path, err)
	}
	defer func() {
		if there, err := os.Lstat(path); err == nil && os.SameFile(own, there) {
			_ = os.Remove(path)
		}
	}()
	if o.Ready != nil {
		o.Ready()
	}
	watched, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- s.accept(sock) }()
	select {
	case <-ctx.Done():
		_ = unix.Shutdown(sock, unix.SHUT_RDWR) // ends accept
		<-ended
	case err = <-ended:
	case <-replaced(watched, path, own):
		err = fmt.Errorf("the socket %s was deleted or replaced; do not delete it while the guardian runs", path)
		_ = unix.Shutdown(sock, unix.SHUT_RDWR)
		<-ended
	}
	_ = unix.Close(sock)
	if errors.Is(err, errReplace) {
		err = nil
	}
	s.finish()
	return err
}

// replaced is closed when the path no longer leads to our socket: no daemon finds the service then.
func replaced(ctx context.Context, path string, own os.FileInfo) <-chan struct{} {
	lost := make(chan struct{})
	go func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-time.After(attendTime):
			}
			there, err := os.Lstat(path)
			if errors.Is(err, os.ErrNotExist) || err == nil && !os.SameFile(own, there) {
				close(lost)
				return
			}
		}
	}()
	return lost
}

type service struct {
	ServiceOptions
	recovery *Recovery
	parts    parts

	mu     sync.Mutex
	serves map[*guardian]chan struct{} // connections, closed when served
}

// listen opens the socket. Only this user can connect: the directory is private to the user, or
// the mode of the socket excludes others.
func listen(path string) (int, error) {
	sock, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("create socket: %w", err)
	}
	fail := func(err error) (int, error) {
		_ = unix.Close(sock)
		return -1, fmt.Errorf("listen on %s: %w", path, err)
	}
	if probe, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0); err == nil {
		limit(probe)
		err = unix.Connect(probe, &unix.SockaddrUnix{Name: path})
		_ = unix.Close(probe)
		if err == nil || errors.Is(err, unix.EAGAIN) { // EAGAIN: it is frozen, and its backlog is full
			return fail(errors.New("another guardian is running; stop it"))
		}
	}
	_ = os.Remove(path)
	old := unix.Umask(0o177)
	err = unix.Bind(sock, &unix.SockaddrUnix{Name: path})
	unix.Umask(old)
	if err == nil {
		err = unix.Listen(sock, 16)
	}
	if err != nil {
		return fail(err)
	}
	return sock, nil
}

func (s *service) accept(sock int) error {
	replace := make(chan struct{})
	var once sync.Once
	for {
		conn, _, err := unix.Accept4(sock, unix.SOCK_CLOEXEC)
		select {
		case <-replace:
			if err == nil {
				_ = unix.Close(conn)
			}
			return errReplace
		default:
		}
		switch {
		case errors.Is(err, unix.EINTR), errors.Is(err, unix.ECONNABORTED):
			continue
		case errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE), errors.Is(err, unix.ENOMEM):
			time.Sleep(lookPeriod)
			continue
		case err != nil:
			return fmt.Errorf("accept daemon: %w", err)
		}
		if _, err := trusted(conn); err != nil {
			s.Log.Warn("connection refused", "err", err)
			_ = unix.Close(conn)
			continue
		}
		limit(conn) // a frozen daemon that reads no answers blocks nobody
		g := newGuardian(conn, s.Drivers, s.Version)
		g.handed, g.final, g.monitor, g.parts = s.recovery.handed, 0, s.Health, s.parts
		done := make(chan struct{})
		s.mu.Lock()
		if s.serves == nil {
			s.serves = map[*guardian]chan struct{}{}
		}
		s.serves[g] = done
		s.mu.Unlock()
		go func() {
			defer close(done)
			err := g.serve()
			_ = unix.Close(conn)
			s.mu.Lock()
			delete(s.serves, g)
			idle := len(s.serves) == 0
			s.mu.Unlock()
			if g.mismatch && idle {
				once.Do(func() { close(replace); _ = unix.Shutdown(sock, unix.SHUT_RDWR) })
			} else if err != nil {
				s.Log.Warn("connection to the daemon ended", "err", err)
			}
		}()
	}
}

// finish waits for restores in progress, because a stop may have no enable yet. A connected daemon
// replaces this guardian.
func (s *service) finish() {
	s.mu.Lock()
	var wait []chan struct{}
	for g, done := range s.serves {
		_ = unix.Shutdown(g.sock, unix.SHUT_RD)
		wait = append(wait, done)
	}
	s.mu.Unlock()
	late := time.After(finalTime)
	for _, done := range wait {
		select {
		case <-done:
		case <-late:
			return
		}
	}
}
