// SPDX-License-Identifier: Apache-2.0

package guardian

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"xsched/internal/driver"
	"xsched/internal/identity"
	"xsched/internal/seqpacket"
	"xsched/internal/wire"
)

// sleeper starts a process for a test.
func sleeper(t *testing.T) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("sleep", "60")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	return cmd
}

// A record is left alone while its daemon and its guardian live, and while the daemon has time to hand
// the process over. Otherwise the process is restored and the record removed.
func TestRecovery(t *testing.T) {
	dead := sleeper(t)
	gone, err := identify(dead.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	_ = dead.Process.Kill()
	_ = dead.Wait()
	alive, err := identify(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		daemon, guardian process
		target           process // zero: a living one
		boot             string
		restores         bool
		left             bool // the record is kept
		atLeast          time.Duration
	}{
		"both dead":       {daemon: gone, guardian: gone, restores: true},
		"guardian lives":  {daemon: gone, guardian: alive, restores: true},
		"daemon lives":    {daemon: alive, guardian: gone, restores: true, atLeast: handTime},
		"both live":       {daemon: alive, guardian: alive, left: true},
		"the process end": {daemon: gone, guardian: gone, target: gone},
		"reused PID":      {daemon: gone, guardian: gone, target: process{alive.PID, alive.Start + 1}},
		"another boot":    {daemon: gone, guardian: gone, boot: "another"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			target := test.target
			if target == (process{}) {
				living, err := identify(sleeper(t).Process.Pid)
				if err != nil {
					t.Fatal(err)
				}
				target = living
			}
			boot, err := identity.BootID()
			if err != nil {
				t.Fatal(err)
			}
			if test.boot != "" {
				boot = test.boot
			}
			b, err := json.Marshal(record{
				Boot: boot, Target: target, Driver: "fake", State: json.RawMessage("1"), Daemon: test.daemon, Guardian: test.guardian,
			})
			if err != nil {
				t.Fatal(err)
			}
			path := filepath.Join(dir, journalDir, "1-1-1.json")
			_ = os.Mkdir(filepath.Dir(path), 0o700)
			if err := os.WriteFile(path, b, 0o600); err != nil {
				t.Fatal(err)
			}
			d := &fakeDriver{calls: map[uint64]int{}, does: map[uint64]func(int) error{1: func(n int) error {
				if n < 3 {
					return errBusy
				}
				return nil
			}}}
			start := time.Now()
			r := Recover(dir, []driver.Driver{d}, slog.New(slog.DiscardHandler))
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
			defer cancel()
			if err := r.Wait(ctx, 0); err != nil {
				t.Fatal(err)
			}
			if n := d.count(1); test.restores != (n == 3) || !test.restores && n != 0 {
				t.Errorf("%d attempts", n)
			}
			if took := time.Since(start); took < test.atLeast {
				t.Errorf("after %v", took)
			}
			if _, err := os.Stat(path); (err == nil) != test.left {
				t.Errorf("record: %v", err)
			}
		})
	}
}

// A look that fails for lack of descriptors is no sign that a process has ended: the recovery waits for an
// answer, restores the process, and keeps its record until then.
func TestRecoveryWithoutDescriptors(t *testing.T) {
	t.Parallel()
	dir, target, guardian := t.TempDir(), sleeper(t), sleeper(t)
	w := driver.Ward{Driver: "fake", Session: 1, PID: target.Process.Pid, State: json.RawMessage("1")}
	if err := journalOf(dir).write(w, driver.Place{Dir: dir}, guardian.Process.Pid); err != nil {
		t.Fatal(err)
	}
	_ = guardian.Process.Kill()
	_ = guardian.Wait()
	d, failures := &fakeDriver{calls: map[uint64]int{}}, atomic.Int32{}
	fails := func() error {
		if n := failures.Add(1); n%2 == 1 && n < 12 { // each kind of look, several times
			return &os.PathError{Op: "open", Path: "/proc", Err: unix.EMFILE}
		}
		return nil
	}
	r := recoverAll(dir, []driver.Driver{d}, slog.New(slog.DiscardHandler), looker{
		start: func(pid int) (uint64, error) {
			if err := fails(); err != nil {
				return 0, err
			}
			return identity.Started(pid)
		},
		open: func(pid, flags int) (int, error) {
			if err := fails(); err != nil {
				return -1, err
			}
			return unix.PidfdOpen(pid, flags)
		},
	})
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := r.Wait(ctx, 0); err != nil || failures.Load() < 12 {
		t.Errorf("%v, %d looks", err, failures.Load())
	}
	if d.count(1) != 1 || len(journalOf(dir).read()) != 0 {
		t.Errorf("%d attempts, %d records", d.count(1), len(journalOf(dir).read()))
	}
}

// A daemon that hands the process over in time cancels the recovery.
func TestRecoveryIsHandedOver(t *testing.T) {
	dir, target := t.TempDir(), sleeper(t)
	w := driver.Ward{Driver: "fake", Session: 1, PID: target.Process.Pid, State: json.RawMessage("1")}
	guardian := sleeper(t)
	if err := journalOf(dir).write(w, driver.Place{Dir: dir}, guardian.Process.Pid); err != nil {
		t.Fatal(err)
	}
	_ = guardian.Process.Kill()
	_ = guardian.Wait()
	d := &fakeDriver{calls: map[uint64]int{}}
	r := Recover(dir, []driver.Driver{d}, slog.New(slog.DiscardHandler))
	r.handed(recordName(w))
	time.Sleep(2 * handTime)
	if d.count(1) != 0 || len(journalOf(dir).read()) != 1 {
		t.Errorf("%d attempts, %d records", d.count(1), len(journalOf(dir).read()))
	}
	journalOf(dir).remove("../" + recordName(w)) // outside of the folder: ignored
	journalOf(dir).remove(recordName(w))
	if len(journalOf(dir).read()) != 0 {
		t.Error("the record is still there")
	}
}

// A full disk or an unwritable folder refuses the attach: nobody could resume the process later.
func TestUnrecordedProcessIsRefused(t *testing.T) {
	w := driver.Ward{PID: sleeper(t).Process.Pid}
	if err := journal("/proc/none").write(w, driver.Place{}, os.Getpid()); err == nil {
		t.Error("accepted")
	}
}

// The guardian moves to the named cgroup.
func TestIsolate(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "guardian")
	if err := isolate("", 1); err != nil {
		t.Error(err)
	}
	if err := isolate(dir, 77); err == nil {
		t.Error("a folder that is no cgroup was accepted")
	}
	procs := filepath.Join(dir, "cgroup.procs")
	if err := os.WriteFile(procs, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := isolate(dir, 77); err != nil {
		t.Error(err)
	}
	if b, err := os.ReadFile(procs); err != nil || string(b) != "77" {
		t.Errorf("%q %v", b, err)
	}
}

// A guardian of another release is refused, and a service without other work ends to be replaced.
func TestOtherReleaseIsRefused(t *testing.T) {
	dir := t.TempDir()
	ready, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		ended <- Serve(context.Background(), ServiceOptions{
			Dir: dir, Version: "2", Log: slog.New(slog.DiscardHandler), Ready: func() { close(ready) },
		})
	}()
	<-ready
	c := NewClient(Options{Place: driver.Place{Dir: dir}, Version: "1", Log: slog.New(slog.DiscardHandler)})
	if _, err := c.dial(); err == nil {
		t.Error("accepted")
	}
	select {
	case err := <-ended:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(10 * time.Second):
		t.Error("the service did not end")
	}
}

// serveFake runs a guardian service until stop is called.
func serveFake(t *testing.T, dir string) (d *fakeDriver, stop func()) {
	t.Helper()
	d = &fakeDriver{calls: map[uint64]int{}}
	ready, ended := make(chan struct{}), make(chan struct{})
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		defer close(ended)
		if err := Serve(ctx, ServiceOptions{
			Dir: dir, Drivers: []driver.Driver{d}, Version: "1", Log: slog.New(slog.DiscardHandler), Ready: func() { close(ready) },
		}); err != nil {
			t.Error(err)
		}
	}()
	<-ready
	return d, func() { cancel(); <-ended }
}

// keep has a client guard a process as session 1.
func keep(t *testing.T, c *Client) {
	t.Helper()
	page, memfd, err := wire.NewPage(1)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(page.Release)
	pid := sleeper(t).Process.Pid
	pidfd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		t.Fatal(err)
	}
	err = c.Keep(driver.Ward{Driver: "fake", Session: 1, PID: pid, Page: memfd, PIDFD: pidfd, State: json.RawMessage("1")})
	seqpacket.CloseAll([]int{memfd, pidfd})
	if err != nil {
		t.Fatal(err)
	}
}

// A guardian that can't be replaced at once, such as for lack of descriptors, is replaced later.
// Otherwise the end of the daemon would leave the process suspended.
func TestLateReplacement(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	_, stop := serveFake(t, dir)
	c := NewClient(Options{Command: []string{"/none"}, Place: driver.Place{Dir: dir}, Version: "1", Log: slog.New(slog.DiscardHandler)})
	defer c.Close()
	keep(t, c)
	stop()
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		if pid, _, restarts := c.Stats(); pid == 0 && restarts > 0 {
			break
		}
		if time.Now().After(end) {
			t.Fatal("the loss was not noticed")
		}
	}
	d, stop := serveFake(t, dir)
	defer stop()
	// The new guardian restores the process, because nobody updates the heartbeat.
	for end := time.Now().Add(10 * time.Second); d.count(1) == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("no guardian has the process again")
		}
	}
}

// A daemon that stops while a process waits for a guardian makes a last attempt: nobody else would
// resume the process before the next daemon.
func TestCloseHandsOver(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	_, stop := serveFake(t, dir)
	c := NewClient(Options{Command: []string{"/none"}, Place: driver.Place{Dir: dir}, Version: "1", Log: slog.New(slog.DiscardHandler)})
	keep(t, c)
	stop()
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		if pid, _, _ := c.Stats(); pid == 0 {
			break // the loss is noticed
		}
		if time.Now().After(end) {
			t.Fatal("the loss was not noticed")
		}
	}
	c.Drop(1, false)
	d, stop := serveFake(t, dir)
	defer stop()
	c.Close()
	for end := time.Now().Add(5 * time.Second); d.count(1) == 0 || len(journalOf(dir).read()) > 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("no guardian restored the process")
		}
	}
}

// A daemon that gives up a process while no guardian answers hands it to the next one: otherwise the
// process would stay suspended as long as the daemon lives.
func TestDropWithoutGuardian(t *testing.T) {
	for name, lose := range map[string]func(t *testing.T, c *Client, stop func()){
		"dead": func(_ *testing.T, _ *Client, stop func()) { stop() },
		"stalled": func(t *testing.T, c *Client, stop func()) {
			pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = unix.Close(pair[1]) })
			tv := unix.NsecToTimeval(int64(50 * time.Millisecond))
			_ = unix.SetsockoptTimeval(pair[0], unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv)
			c.mu.Lock()
			c.drop(c.link)
			c.link = newLink(pair[0], os.Getpid())
			c.link.has[1] = true
			c.mu.Unlock()
			stop()
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			_, stop := serveFake(t, dir)
			c := NewClient(Options{Command: []string{"/none"}, Place: driver.Place{Dir: dir}, Version: "1", Log: slog.New(slog.DiscardHandler)})
			defer c.Close()
			keep(t, c)
			lose(t, c, stop)
			c.Drop(1, false)
			d, stop := serveFake(t, dir)
			defer stop()
			for end := time.Now().Add(10 * time.Second); d.count(1) == 0 || len(journalOf(dir).read()) > 0; time.Sleep(time.Millisecond) {
				if time.Now().After(end) {
					t.Fatal("no guardian restored the process")
				}
			}
		})
	}
}

// A daemon may hand the process over while a recovery of it ends. Its new record stays.
func TestRecoveryLeavesNewRecord(t *testing.T) {
	dir, target, old := t.TempDir(), sleeper(t), sleeper(t)
	w := driver.Ward{Driver: "fake", Session: 1, PID: target.Process.Pid, State: json.RawMessage("1")}
	j := journalOf(dir)
	if err := j.write(w, driver.Place{Dir: dir}, old.Process.Pid); err != nil {
		t.Fatal(err)
	}
	_ = old.Process.Kill()
	_ = old.Wait()
	d := &fakeDriver{calls: map[uint64]int{}, does: map[uint64]func(int) error{1: func(int) error {
		return j.write(w, driver.Place{Dir: dir}, os.Getpid())
	}}}
	r := Recover(dir, []driver.Driver{d}, slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := r.Wait(ctx, 0); err != nil {
		t.Fatal(err)
	}
	if d.count(1) != 1 || len(j.read()) != 1 {
		t.Errorf("%d attempts, %d records", d.count(1), len(j.read()))
	}
}

// A guardian that starts must not remove the record that a living daemon is writing, whatever the
// clock says. One of a daemon that has ended goes.
func TestUnfinishedRecord(t *testing.T) {
	dir := t.TempDir()
	ended := exec.Command("true")
	if err := ended.Run(); err != nil {
		t.Fatal(err)
	}
	for pid, stays := range map[int]bool{os.Getpid(): true, ended.Process.Pid: false} {
		path := filepath.Join(dir, fmt.Sprintf("%d-1-1.json.new", pid))
		if err := os.WriteFile(path, []byte("{"), 0o600); err != nil {
			t.Fatal(err)
		}
		for _, at := range []time.Duration{-time.Hour, time.Hour} { // a step of the clock
			if err := os.Chtimes(path, time.Now().Add(at), time.Now().Add(at)); err != nil {
				t.Fatal(err)
			}
			_ = journal(dir).read()
			if _, err := os.Stat(path); (err == nil) != stays {
				t.Fatalf("the daemon lives: %v; its file: %v", stays, err)
			}
			if !stays {
				break
			}
		}
	}
}

// A service repeats the restore for as long as the process lives, and then closes its files.
func TestServiceDoesNotGiveUp(t *testing.T) {
	before := count(t)
	g, d := newFakeGuardian(map[uint64]func(int) error{1: func(n int) error {
		if n < 6 {
			return errBusy
		}
		return nil
	}})
	guard(t, g, 1)
	g.final = time.Millisecond
	g.end()
	if len(g.leaving) != 1 {
		t.Fatalf("%d attempts, %d left", d.count(1), len(g.leaving))
	}
	g.final = 0
	g.end()
	if n := count(t); d.count(1) != 6 || len(g.leaving) != 0 || n > before+1 { // the sleeper's pidfd
		t.Errorf("%d attempts, %d left, %d descriptors instead of %d", d.count(1), len(g.leaving), n, before)
	}
}
