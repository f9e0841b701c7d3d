// SPDX-License-Identifier: Apache-2.0

package guardian

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"xsched/internal/clock"
	"xsched/internal/driver"
	"xsched/internal/seqpacket"
	"xsched/internal/wire"
)

var errBusy = errors.New("busy")

// fakeDriver answers by session; an unlisted session succeeds.
type fakeDriver struct {
	driver.Driver
	mu    sync.Mutex
	calls map[uint64]int
	does  map[uint64]func(n int) error
}

func (d *fakeDriver) Name() string { return "fake" }

func (d *fakeDriver) Restoration(_ driver.Place, _ int, state json.RawMessage, fds []int) (driver.Restoration, error) {
	r := &fakeRestoration{driver: d, fds: fds}
	return r, json.Unmarshal(state, &r.session)
}

type fakeRestoration struct {
	driver  *fakeDriver
	session uint64
	fds     []int
}

func (d *fakeDriver) Reopen(_ context.Context, p driver.Place, pid, _ int, state json.RawMessage) (driver.Restoration, error) {
	return d.Restoration(p, pid, state, nil)
}

func (r *fakeRestoration) Restore(context.Context) error {
	d := r.driver
	d.mu.Lock()
	d.calls[r.session]++
	n, f := d.calls[r.session], d.does[r.session]
	d.mu.Unlock()
	if f == nil {
		return nil
	}
	return f(n)
}

func (r *fakeRestoration) Gone() bool { return false }
func (r *fakeRestoration) Close()     { seqpacket.CloseAll(r.fds) }

func (d *fakeDriver) count(session uint64) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.calls[session]
}

func newFakeGuardian(does map[uint64]func(n int) error) (*guardian, *fakeDriver) {
	d := &fakeDriver{calls: map[uint64]int{}, does: does}
	return &guardian{drivers: []driver.Driver{d}, place: &driver.Place{}, wards: map[uint64]*ward{}, leaving: map[*ward]struct{}{}, unsaid: map[uint64]int{}}, d
}

// guard attaches to a sleeping process whose page has no heartbeat, as with a dead daemon.
func guard(t *testing.T, g *guardian, session uint64) *wire.Page {
	t.Helper()
	page, memfd, err := wire.NewPage(session)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(page.Release)
	page.WriteLease(7, 1)
	cmd := exec.Command("sleep", "60")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	pidfd, err := unix.PidfdOpen(cmd.Process.Pid, 0)
	if err != nil {
		t.Fatal(err)
	}
	m := message{Op: "attach", Session: session, Driver: "fake", PID: cmd.Process.Pid, State: json.RawMessage(fmt.Sprint(session))}
	if err := g.do(m, []int{memfd, pidfd, open(t)}); err != nil {
		t.Fatal(err)
	}
	return page
}

func lookUntil(t *testing.T, g *guardian, what string, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !cond(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("never: %s", what)
		}
		g.look()
	}
}

// A failed restore is retried and reported only after success.
func TestRestoreIsRetried(t *testing.T) {
	var page *wire.Page
	g, d := newFakeGuardian(map[uint64]func(int) error{1: func(n int) error {
		if page.RecoveredEpoch() != 0 {
			return errors.New("reported before it was done")
		}
		if n < 4 {
			return errBusy
		}
		return nil
	}})
	page = guard(t, g, 1)
	lookUntil(t, g, "recovered", func() bool { return page.RecoveredEpoch() == 7 })
	if n := d.count(1); n != 4 {
		t.Errorf("%d attempts", n)
	}
	// One restore per silence; a later suspension is undone too.
	for range 5 {
		g.look()
	}
	if n := d.count(1); n != 4 {
		t.Errorf("%d attempts", n)
	}
	g.wards[1].freed = 6
	d.does[1] = nil
	lookUntil(t, g, "again", func() bool { return d.count(1) == 5 })
}

// A suspension that begins after the decision to restore is newer and does not count as undone.
func TestNewerSuspensionIsNotUndone(t *testing.T) {
	g, _ := newFakeGuardian(nil)
	page := guard(t, g, 1)
	w := g.wards[1]
	if !w.due(clock.Now()) {
		t.Fatal("an expired lease is not due")
	}
	page.WriteLease(8, clock.Now().Add(time.Minute))
	w.restore(nil)
	for end := time.Now().Add(10 * time.Second); !w.collect(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the attempt never ends")
		}
	}
	if epoch := page.RecoveredEpoch(); epoch != 7 {
		t.Errorf("suspension %d counts as undone", epoch)
	}
}

// A hung device delays neither other wards nor the daemon's requests.
func TestStuckWardDelaysNoOther(t *testing.T) {
	hang := make(chan struct{})
	g, _ := newFakeGuardian(map[uint64]func(int) error{1: func(int) error { <-hang; return nil }})
	stuck := guard(t, g, 1)
	lookUntil(t, g, "stuck", func() bool { return g.wards[1].attempt != nil })
	free := guard(t, g, 2)
	lookUntil(t, g, "the other is restored", func() bool { return free.RecoveredEpoch() == 7 })
	if stuck.RecoveredEpoch() != 0 {
		t.Error("the stuck one is reported as restored")
	}
	// A running attempt finishes before the files are closed.
	_ = g.do(message{Op: "detach", Session: 1, Restored: true}, nil)
	g.look()
	if len(g.wards) != 1 || len(g.leaving) != 1 {
		t.Errorf("%d wards, %d leaving", len(g.wards), len(g.leaving))
	}
	close(hang)
	lookUntil(t, g, "let go", func() bool { return len(g.leaving) == 0 })
}

// The guardian confirms the detach of a restored process only after its own attempt, which stops the
// process for a moment. It answers other requests meanwhile.
func TestDetachWaitsForAttempt(t *testing.T) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(pair[0]) }()
	began, hang := make(chan struct{}, 1), make(chan struct{})
	g, _ := newFakeGuardian(map[uint64]func(int) error{1: func(int) error { began <- struct{}{}; <-hang; return nil }})
	g.sock = pair[1]
	guard(t, g, 1)
	ended := make(chan error, 1)
	go func() { ended <- g.serve(); _ = unix.Close(pair[1]) }()
	<-began
	next := func() (r reply) {
		if _, err := seqpacket.Receive(pair[0], &r); err != nil {
			t.Error(err)
		}
		return r
	}
	for _, m := range []message{{Op: "detach", Seq: 1, Session: 1, Restored: true}, {Op: "detach", Seq: 2, Session: 9, Restored: true}} {
		if err := seqpacket.Send(pair[0], m, nil); err != nil {
			t.Fatal(err)
		}
	}
	if r := next(); r.Seq != 2 {
		t.Errorf("answered request %d during the attempt", r.Seq)
	}
	close(hang)
	if r := next(); r.Seq != 1 || r.Error != "" {
		t.Errorf("%+v", r)
	}
	_ = unix.Shutdown(pair[0], unix.SHUT_WR)
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// Detach restores, unless the daemon already has.
func TestDetachRestores(t *testing.T) {
	g, d := newFakeGuardian(map[uint64]func(int) error{1: func(n int) error {
		if n < 3 {
			return errBusy
		}
		return nil
	}})
	guard(t, g, 1)
	_ = g.do(message{Op: "detach", Session: 1}, nil)
	lookUntil(t, g, "let go", func() bool { return len(g.leaving) == 0 })
	guard(t, g, 2)
	_ = g.do(message{Op: "detach", Session: 2, Restored: true}, nil)
	g.look()
	if d.count(1) != 3 || d.count(2) != 0 || len(g.wards)+len(g.leaving) != 0 {
		t.Errorf("%v, %d leaving", d.calls, len(g.leaving))
	}
}

// An attempt that began before the daemon ended does not cover what the daemon did meanwhile: the
// guardian restores once more. A process that the daemon restored needs only the end of the attempt.
func TestEndRestoresOnceMore(t *testing.T) {
	for name, c := range map[string]struct {
		leave func(g *guardian)
		want  int
	}{
		"the daemon ended": {func(g *guardian) { g.end() }, 2},
		"detach":           {func(g *guardian) { _ = g.do(message{Op: "detach", Session: 1}, nil) }, 2},
		"restored":         {func(g *guardian) { _ = g.do(message{Op: "detach", Session: 1, Restored: true}, nil) }, 1},
	} {
		t.Run(name, func(t *testing.T) {
			restored := make(chan struct{}, 2)
			g, d := newFakeGuardian(map[uint64]func(int) error{1: func(int) error { restored <- struct{}{}; return nil }})
			page := guard(t, g, 1)
			g.look() // the heartbeat is late
			<-restored
			page.WriteLease(8, 1) // the daemon suspends the process, before the guardian looks again
			c.leave(g)
			lookUntil(t, g, "let go", func() bool { return len(g.wards)+len(g.leaving) == 0 })
			if n := d.count(1); n != c.want {
				t.Errorf("restored %d times, want %d", n, c.want)
			}
		})
	}
}

// A late reply must not answer the next request.
func TestLateAnswer(t *testing.T) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(pair[0]); _ = unix.Close(pair[1]) }()
	l := newLink(pair[0], 0)
	if err := l.send(message{Op: "attach"}, nil); err != nil { // nobody waits for its reply
		t.Fatal(err)
	}
	go func() {
		for i := 0; ; i++ {
			var m message
			fds, err := seqpacket.Receive(pair[1], &m)
			seqpacket.CloseAll(fds)
			if err != nil {
				return
			}
			r := reply{Seq: m.Seq}
			if m.Op == "attach" && i > 0 {
				r.Error = "no"
			}
			_ = seqpacket.Send(pair[1], r, nil)
			if m.Op == "attach" && i > 0 {
				return
			}
		}
	}()
	if err := l.ask(message{Op: "attach"}, nil); err == nil {
		t.Error("the guardian refused the request")
	}
}
