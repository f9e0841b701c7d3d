// SPDX-License-Identifier: Apache-2.0

package hub

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"xsched/internal/clock"
	"xsched/internal/driver"
	"xsched/internal/driver/nvidia"
	"xsched/internal/engine"
	"xsched/internal/model"
	"xsched/internal/seqpacket"
	"xsched/internal/wire"
)

// client plays a shim: it joins, has a page, and rings.
type client struct {
	conn *net.UnixConn
	page wire.ClientPage
	bell int
	id   uint64
}

// dial connects and says HELLO; a refusal is an error with its reason.
func dial(path string, h wire.Hello) (*client, error) {
	conn, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: path, Net: "unixpacket"})
	if err != nil {
		return nil, err
	}
	copy(h.Command[:], "test")
	if _, err := conn.Write(wire.EncodeHello(h)); err != nil {
		_ = conn.Close()
		return nil, err
	}
	c, err := welcome(conn)
	if err != nil {
		_ = conn.Close()
	}
	return c, err
}

func welcome(conn *net.UnixConn) (*client, error) {
	_ = conn.SetReadDeadline(time.Now().Add(10 * time.Second))
	packet, fds, err := receive(conn, make([]byte, wire.FrameMaxBytes+1))
	if err != nil {
		return nil, err
	}
	if r, err := wire.DecodeRefused(packet); err == nil {
		return nil, fmt.Errorf("refused: %s", r.ReasonString())
	}
	w, err := wire.DecodeWelcome(packet)
	if err != nil || len(fds) != 2 {
		seqpacket.CloseAll(fds)
		return nil, fmt.Errorf("welcome with %d descriptors: %w", len(fds), err)
	}
	page, err := wire.MapPage(fds[0])
	_ = unix.Close(fds[0])
	if err != nil {
		return nil, err
	}
	return &client{conn: conn, page: wire.ClientPage{Page: page}, bell: fds[1], id: w.SessionID}, nil
}

func (c *client) ring() {
	one := [8]byte{1}
	_, _ = unix.Write(c.bell, one[:])
}

func (c *client) busy(slot int, on bool) {
	if c.page.SetBusy(slot, on, clock.Now()) && !c.page.Quiet(slot) {
		c.ring()
	}
}

func (c *client) queue(slot int) {
	c.page.CreateQueue(slot, 0, 1<<8)
	c.ring()
}

func (c *client) close() {
	_ = c.conn.Close()
	_ = unix.Close(c.bell)
	c.page.Release()
}

func (c *client) held(slot int) bool { h, _, _ := c.page.Gate(slot); return h }

// fakeHardware is a driver in memory: what is suspended, which files are open.
type fakeHardware struct {
	mu     sync.Mutex
	files  []int
	state  model.Desired
	caps   map[model.DeviceID]driver.Capability
	hang   chan struct{} // operations wait for it when not nil
	closed atomic.Bool
	slices []uint64
}

// Frame takes frames of the fake driver, which are those of a real one: the
// first descriptor makes it capable, timeslices are counted.
func (f *fakeHardware) Frame(packet []byte, fds []int) (bool, error) {
	events, err := nvidia.DecodeRM(packet)
	if err != nil || len(fds) > 1 {
		seqpacket.CloseAll(fds)
		return false, errors.Join(err, wire.ErrFrame)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(fds) == 1 {
		f.files = append(f.files, fds[0])
		f.caps = map[model.DeviceID]driver.Capability{testGPU: {MaxLevel: model.LevelInterrupt, Slices: true}}
	}
	for _, e := range events {
		switch {
		case e.Kind == nvidia.RMClient && len(fds) == 0:
			return false, wire.ErrFrame
		case e.Kind == nvidia.RMTimeslice:
			f.slices = append(f.slices, e.Value)
		}
	}
	return false, nil
}

func (f *fakeHardware) Resolve(context.Context) (map[model.DeviceID]driver.Capability, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.caps, nil
}
func (f *fakeHardware) Target(model.DeviceID) driver.Target { return fakeTarget{f} }
func (f *fakeHardware) Why() (string, bool)                 { return "nothing handed over yet", false }
func (f *fakeHardware) Caught() uint64                      { return 0 }
func (f *fakeHardware) Disconnect()                         {}
func (f *fakeHardware) HardwareQueues(context.Context) ([]driver.HardwareQueue, error) {
	return nil, nil
}

func (f *fakeHardware) OwnSlice(model.DeviceID) int64 { return 2048 }
func (f *fakeHardware) Close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, fd := range f.files {
		_ = unix.Close(fd)
	}
	f.files = nil
	f.closed.Store(true)
}

// fakeAttached is fakeHardware of a process without the shim.
type fakeAttached struct {
	*fakeHardware
	ended func(restored bool)
}

func (f fakeAttached) Capabilities() map[model.DeviceID]driver.Capability { return f.caps }
func (f fakeAttached) Guard(context.Context, uint64, int) (func(bool), error) {
	return f.ended, nil
}
func (f fakeAttached) RestoredByClose() bool              { return false }
func (f fakeAttached) Poll(context.Context) (bool, error) { return false, nil }

func (f *fakeHardware) now() model.Desired {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.state
}

type fakeTarget struct{ f *fakeHardware }

func (t fakeTarget) Apply(_ context.Context, want model.Desired) error {
	if t.f.hang != nil {
		<-t.f.hang
	}
	t.f.mu.Lock()
	defer t.f.mu.Unlock()
	t.f.state = want
	return nil
}
func (fakeTarget) Invalidate()  {}
func (fakeTarget) Close() error { return nil }

var testGPU = model.MakeDeviceID(0, 1, 0, 0)

type fixture struct {
	*Hub
	path string
	mu   sync.Mutex
	hws  []*fakeHardware
}

// hardware returns that of the nth client.
func (f *fixture) hardware(n int) *fakeHardware {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.hws[n]
}

func startHub(t testing.TB, change func(*Config, *engine.Config)) *fixture {
	t.Helper()
	dir, err := os.MkdirTemp("", "hub") // t.TempDir is too long for a socket's name
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	f := &fixture{path: filepath.Join(dir, "xsched.sock")}
	l, err := Listen("unixpacket", f.path, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	ec := engine.DefaultConfig()
	cfg := Config{Listener: l, UID: os.Geteuid(), Log: slog.New(slog.DiscardHandler)}
	cfg.NewHardware = func(driver.SessionOptions) driver.Session {
		f.mu.Lock()
		defer f.mu.Unlock()
		hw := &fakeHardware{}
		f.hws = append(f.hws, hw)
		return hw
	}
	if change != nil {
		change(&cfg, &ec)
	}
	if cfg.Engine, err = engine.New(ec); err != nil {
		t.Fatal(err)
	}
	if f.Hub, err = New(cfg); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.Close)
	return f
}

// strangers makes every client a process of its own: the queues of one process run and
// stop together.
func strangers(c *Config) {
	var n atomic.Int64
	c.peer = func(conn *net.UnixConn) (credentials, error) {
		cr, err := peer(conn)
		cr.pid += int(n.Add(1)) << 23
		return cr, err
	}
}

func (f *fixture) join(t testing.TB, priority int32, level uint32) *client {
	t.Helper()
	c, err := dial(f.path, wire.Hello{PID: uint32(os.Getpid()), Hint: wire.Hint{Said: wire.HintPriority | wire.HintLevel, Priority: int64(priority), Level: int64(level)}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.close)
	return c
}

// handOver gives the daemon a control file, as the shim's observer does.
func (c *client) handOver(t testing.TB) {
	t.Helper()
	packet, err := nvidia.EncodeRM([]nvidia.RMEvent{{Kind: nvidia.RMClient, Client: 7, Object: 7}})
	if err != nil {
		t.Fatal(err)
	}
	fd, err := unix.MemfdCreate("control", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(fd) }()
	if _, _, err := c.conn.WriteMsgUnix(packet, unix.UnixRights(fd), nil); err != nil {
		t.Fatal(err)
	}
}

func await(t testing.TB, what string, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !cond(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("never: %s", what)
		}
	}
}

// block stops the loop until it is released, or the test ends.
func (f *fixture) block(t testing.TB) (release func()) {
	t.Helper()
	blocked, released := make(chan struct{}), make(chan struct{})
	if err := f.post(context.Background(), func(*loop) { close(blocked); <-released }); err != nil {
		t.Fatal(err)
	}
	<-blocked
	release = sync.OnceFunc(func() { close(released) })
	t.Cleanup(release)
	return release
}

func openFDs(t testing.TB) int {
	t.Helper()
	e, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(e)
}
