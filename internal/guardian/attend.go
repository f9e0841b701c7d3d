// SPDX-License-Identifier: Apache-2.0

package guardian

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"xsched/internal/health"
)

// A guardian looks idle until the daemon dies, so nothing else would notice that it hangs.
const (
	attendTime = time.Second // between two questions to a guardian
	// stuckLimit is when a part of a guardian counts as dead. Its requests take milliseconds, and one
	// attempt to restore a process has tryTime.
	stuckLimit = 10 * time.Second
)

// parts are those of a guardian.
type parts struct {
	requests, restores *health.Calls
}

// newParts adds the parts of a guardian. A restart helps its requests. A restore waits for a device,
// which no restart helps.
func newParts(m *health.Monitor, limit time.Duration) parts {
	return parts{
		requests: m.AddCalls("requests of daemons", limit, true),
		restores: m.AddCalls("restores of programs", limit, false),
	}
}

// lateParts returns the parts that are late.
func lateParts(m *health.Monitor) (late []health.State) {
	if m == nil {
		return nil
	}
	for _, s := range m.States() {
		if s.Late() {
			late = append(late, s)
		}
	}
	return late
}

// health asks a guardian how it is, and returns the parts that hang. A guardian of another release may
// not know the question: its refusal is a sign of life, too.
func (l *link) health() ([]health.State, error) {
	var r reply
	err := l.question(message{Op: opHealth}, nil, &r)
	if errors.Is(err, errRefused) {
		err = nil
	}
	return r.Late, err
}

// connect connects to the service's socket in a runtime directory. Every wait of the connection has a
// limit.
func connect(dir string) (*link, error) {
	if dir == "" {
		return nil, fmt.Errorf("%w: no runtime directory", errNoService)
	}
	sock, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	limit(sock)
	l := newLink(sock, 0)
	switch err = unix.Connect(sock, &unix.SockaddrUnix{Name: filepath.Join(dir, ServiceSocket)}); {
	case errors.Is(err, unix.EAGAIN):
		err = errSilent
	case err != nil:
		err = fmt.Errorf("%w: %w", errNoService, err)
	default:
		l.pid, err = trusted(sock)
	}
	if err != nil {
		_ = unix.Close(sock)
		return nil, err
	}
	return l, nil
}

// CheckService asks the guardian's service of a runtime directory how it is, and returns the parts that
// hang.
func CheckService(dir string) ([]health.State, error) {
	l, err := connect(dir)
	if err != nil {
		return nil, err
	}
	defer func() { _ = unix.Close(l.sock) }()
	return l.health()
}

// attend asks for signs of life until Close.
func (c *Client) attend() {
	for was := false; ; {
		select {
		case <-c.ending:
			return
		case <-time.After(attendTime):
		}
		there, works := c.check()
		switch {
		case !there:
			c.options.Alive.End() // nothing is attached, and there is no service
		case works || !was:
			c.options.Alive.Beat()
		}
		was = there
	}
}

// check asks the guardian in use, and the service, which may be another one. A guardian that does not
// answer is replaced, and so is one whose end nobody noticed.
func (c *Client) check() (there, works bool) {
	works = true
	c.lock()
	if l := c.link; l != nil && !c.closed {
		late, err := l.health()
		there, works = true, err == nil && len(late) == 0
		if err != nil {
			c.forsake(l)
		}
	}
	c.unlock()
	dir := c.options.Place.Dir
	if _, err := os.Stat(filepath.Join(dir, ServiceSocket)); dir == "" || err != nil {
		return there, works
	}
	late, err := CheckService(dir)
	return true, works && err == nil && len(late) == 0
}
