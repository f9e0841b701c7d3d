// SPDX-License-Identifier: Apache-2.0

package sessiontest

import (
	"context"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"xsched/internal/driver"
	"xsched/internal/engine"
	"xsched/internal/identity"
	"xsched/internal/loop"
	"xsched/internal/model"
	"xsched/internal/session"
	"xsched/internal/wire"
)

// Config configures a fixture.
type Config struct {
	Engine  engine.Config
	Loop    loop.Config
	Session session.Config
}

// Fixture is a server with its loop.
type Fixture struct {
	*session.Server
	*loop.Loop
	Path    string // of the socket
	Metrics *driver.Metrics

	mu  sync.Mutex
	hws []*Hardware
}

// SetHint is EditHint for a process.
func (f *Fixture) SetHint(ctx context.Context, pid int, raises bool, change model.HintChange, check func(*model.Hint) error) (model.Hint, error) {
	return f.EditHint(ctx, loop.HintEdit{PID: pid, Change: change, Raises: raises, Check: check})
}

// SetQueueHint is EditHint for a queue.
func (f *Fixture) SetQueueHint(ctx context.Context, pid int, index uint32, raises bool, change model.HintChange, check func(*model.Hint) error) (model.Hint, error) {
	return f.EditHint(ctx, loop.HintEdit{PID: pid, Queue: &index, Change: change, Raises: raises, Check: check})
}

// Start starts a server whose driver is in memory, until the test ends. change may be nil.
func Start(t testing.TB, change func(*Config)) *Fixture {
	t.Helper()
	dir, err := os.MkdirTemp("", "xsched") // t.TempDir is too long for a socket's name
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	f := &Fixture{Path: filepath.Join(dir, "xsched.sock"), Metrics: &driver.Metrics{}}
	l, err := session.Listen("unixpacket", f.Path, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	cfg := Config{
		Engine:  engine.DefaultConfig(),
		Loop:    loop.Config{UID: os.Geteuid(), Log: log, Metrics: f.Metrics},
		Session: session.Config{Listener: l, Log: log, Metrics: f.Metrics},
	}
	cfg.Session.NewHardware = func(driver.SessionOptions) driver.Session {
		f.mu.Lock()
		defer f.mu.Unlock()
		hw := &Hardware{}
		f.hws = append(f.hws, hw)
		return hw
	}
	if change != nil {
		change(&cfg)
	}
	if cfg.Loop.Engine, err = engine.New(cfg.Engine); err != nil {
		t.Fatal(err)
	}
	if f.Loop, err = loop.New(cfg.Loop); err != nil {
		t.Fatal(err)
	}
	cfg.Session.Loop = f.Loop
	if f.Server, err = session.New(cfg.Session); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.Close)
	return f
}

// Close stops the server and then the loop.
func (f *Fixture) Close() {
	f.Server.Close()
	f.Stop()
}

// Hardware returns the driver's side of the nth client.
func (f *Fixture) Hardware(n int) *Hardware {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.hws[n]
}

// Separate makes every client a process of its own: queues of one process run and stop together.
func Separate(c *Config) { Users(c, os.Getuid()); c.Loop.UID = os.Geteuid() }

// Users makes the nth client a process of its own, of the nth user, on a root daemon.
func Users(c *Config, uids ...int) {
	var n atomic.Int64
	c.Loop.UID = 0
	c.Session.Peer = func(conn *net.UnixConn) (identity.Peer, error) {
		cr, err := identity.OfConn(conn)
		i := n.Add(1)
		cr.PID += int(i) << 23
		cr.User.UID = uids[int(i-1)%len(uids)]
		return cr, err
	}
}

// Client connects a client until the test ends.
func (f *Fixture) Client(t testing.TB, priority int32, level uint32) *Client {
	t.Helper()
	c, err := Dial(f.Path, wire.Hello{
		PID:  uint32(os.Getpid()),
		Hint: wire.Hint{Said: wire.HintPriority | wire.HintLevel, Priority: int64(priority), Level: int64(level)},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// Only returns the only client.
func (f *Fixture) Only(t testing.TB) loop.ClientView {
	t.Helper()
	v, err := f.Clients(t.Context())
	if err != nil || len(v) != 1 {
		t.Fatalf("%d clients, %v", len(v), err)
	}
	return v[0]
}

// Known returns the first queue as the engine knows it.
func (f *Fixture) Known(t testing.TB) model.Queue {
	t.Helper()
	var q model.Queue
	err := f.Engine(t.Context(), func(e *engine.Engine) {
		if all := e.Snapshot(0); len(all) > 0 {
			q = all[0].Queue
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	return q
}

// Block blocks the loop until it is released, or the test ends.
func (f *Fixture) Block(t testing.TB) (release func()) {
	t.Helper()
	blocked, released := make(chan struct{}), make(chan struct{})
	go func() {
		_ = f.Engine(context.Background(), func(*engine.Engine) { close(blocked); <-released })
	}()
	<-blocked
	release = sync.OnceFunc(func() { close(released) })
	t.Cleanup(release)
	return release
}

// Await waits until a condition holds.
func Await(t testing.TB, what string, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !cond(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("never: %s", what)
		}
	}
}

// OpenFDs returns how many descriptors this process has.
func OpenFDs(t testing.TB) int {
	t.Helper()
	e, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(e)
}

// Change returns the change of one hint to a value in the form of the command line.
func Change(name, text string) model.HintChange {
	c, err := model.ParseHintChange(map[string]string{name: text})
	if err != nil {
		panic(err)
	}
	return c
}
