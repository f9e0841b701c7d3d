// SPDX-License-Identifier: Apache-2.0

package session_test

import (
	"bufio"
	"context"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"xsched/internal/driver"
	"xsched/internal/health"
	"xsched/internal/identity"
	"xsched/internal/loop"
	"xsched/internal/model"
	"xsched/internal/session/sessiontest"
	"xsched/internal/wire"
)

// hangingHardware hangs in its probe or while it is closed.
type hangingHardware struct {
	sessiontest.Hardware
	wedge    *wedge
	probing  bool
	released atomic.Bool
}

func (h *hangingHardware) Resolve(ctx context.Context) (map[model.DeviceID]driver.Capability, error) {
	if h.probing {
		h.wedge.wait()
	}
	return h.Hardware.Resolve(ctx)
}

func (h *hangingHardware) Close() {
	if !h.probing && !h.released.Swap(true) {
		h.wedge.wait()
	}
	h.Hardware.Close()
}

// wedge blocks until it is freed.
type wedge struct{ free chan struct{} }

func (w *wedge) wait() { <-w.free }

// killedClient starts a program that joins, and kills it. Its child keeps the connection, so only the
// reaper notices.
func killedClient(t *testing.T, path string) {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), "SESSION_TEST_CLIENT="+path)
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	child, _ := strconv.Atoi(strings.TrimSpace(line))
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	if child == 0 || err != nil {
		t.Fatalf("%q, %v", line, err)
	}
	t.Cleanup(func() { _ = unix.Kill(child, unix.SIGKILL) })
}

// TestWedgedPartsAreNamed: a part of the server that hangs is the one whose age grows, and it recovers.
func TestWedgedPartsAreNamed(t *testing.T) {
	hello := wire.Hello{PID: uint32(os.Getpid())}
	for name, c := range map[string]struct {
		prepare func(c *sessiontest.Config, w *wedge)
		act     func(t *testing.T, f *sessiontest.Fixture)
	}{
		"handshakes of programs": {
			func(c *sessiontest.Config, w *wedge) {
				c.Session.Peer = func(conn *net.UnixConn) (identity.Peer, error) { w.wait(); return identity.OfConn(conn) }
			},
			func(_ *testing.T, f *sessiontest.Fixture) { go func() { _, _ = sessiontest.Dial(f.Path, hello) }() },
		},
		"accept of programs": {
			func(c *sessiontest.Config, w *wedge) {
				c.Session.Glance = func(uid, pid int) identity.User { w.wait(); return identity.Glance(uid, pid) }
			},
			func(_ *testing.T, f *sessiontest.Fixture) { go func() { _, _ = sessiontest.Dial(f.Path, hello) }() },
		},
		"nice values of programs": {
			func(c *sessiontest.Config, w *wedge) { c.Session.Nice = func(int) int { w.wait(); return 0 } },
			func(t *testing.T, f *sessiontest.Fixture) { f.Client(t, 0, wire.LevelInterrupt) },
		},
		"session reaper": {
			func(c *sessiontest.Config, w *wedge) { c.Session.Ended = func(loop.Identity, string) { w.wait() } },
			func(t *testing.T, f *sessiontest.Fixture) { killedClient(t, f.Path) },
		},
		"driver probes": {
			func(c *sessiontest.Config, w *wedge) {
				c.Session.NewHardware = func(driver.SessionOptions) driver.Session { return &hangingHardware{wedge: w, probing: true} }
			},
			func(t *testing.T, f *sessiontest.Fixture) { f.Client(t, 0, wire.LevelInterrupt) },
		},
		"release of programs' GPUs": {
			func(c *sessiontest.Config, w *wedge) {
				c.Session.NewHardware = func(driver.SessionOptions) driver.Session { return &hangingHardware{wedge: w} }
			},
			func(t *testing.T, f *sessiontest.Fixture) { _ = f.Client(t, 0, wire.LevelInterrupt).Conn.Close() },
		},
	} {
		t.Run(strings.ReplaceAll(name, " ", "-"), func(t *testing.T) {
			t.Parallel()
			w, m := &wedge{make(chan struct{})}, &health.Monitor{}
			f := sessiontest.Start(t, func(cfg *sessiontest.Config) {
				cfg.Session.Health = m
				c.prepare(cfg, w)
			})
			age := func() time.Duration {
				for _, s := range m.States() {
					if s.Name == name {
						return s.Age
					}
				}
				t.Fatalf("no part %q", name)
				return 0
			}
			c.act(t, f)
			// Nice values have a period of 1 s; the other parts show work only.
			sessiontest.Await(t, name+" hangs", func() bool { return age() > 1200*time.Millisecond })
			close(w.free)
			sessiontest.Await(t, name+" works again", func() bool { return age() < 500*time.Millisecond })
		})
	}
}
