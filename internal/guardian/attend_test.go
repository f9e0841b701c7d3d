// SPDX-License-Identifier: Apache-2.0

package guardian

import (
	"context"
	"encoding/json"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"xsched/internal/driver"
	"xsched/internal/health"
)

// hangingDriver hangs while it takes a process over, or while it restores one.
type hangingDriver struct {
	fakeDriver
	taking atomic.Bool
	free   chan struct{}
}

func (d *hangingDriver) Restoration(p driver.Place, pid int, state json.RawMessage, fds []int) (driver.Restoration, error) {
	if d.taking.Load() {
		<-d.free
	}
	return d.fakeDriver.Restoration(p, pid, state, fds)
}

// until repeats a check for a while.
func until(t *testing.T, what string, check func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !check(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal(what)
		}
	}
}

// A service of which a part hangs names it to everybody who asks, and its watchdog expires if a
// restart helps.
func TestServiceNamesWhatHangs(t *testing.T) {
	t.Parallel()
	for name, vital := range map[string]bool{"requests of daemons": true, "restores of programs": false} {
		t.Run(strings.ReplaceAll(name, " ", "-"), func(t *testing.T) {
			t.Parallel()
			d := &hangingDriver{fakeDriver: fakeDriver{calls: map[uint64]int{}}, free: make(chan struct{})}
			d.taking.Store(vital)
			d.does = map[uint64]func(int) error{1: func(int) error { <-d.free; return nil }}
			dir, ready, ended := t.TempDir(), make(chan struct{}), make(chan error, 1)
			ctx, cancel := context.WithCancel(context.Background())
			monitor := &health.Monitor{}
			go func() {
				ended <- Serve(ctx, ServiceOptions{
					Dir: dir, Drivers: []driver.Driver{d}, Version: "1", Log: slog.New(slog.DiscardHandler), Ready: func() { close(ready) },
					Health: monitor, stuck: 50 * time.Millisecond,
				})
			}()
			<-ready
			if late, err := CheckService(dir); err != nil || len(late) > 0 {
				t.Errorf("%v, %v", late, err)
			}
			c := NewClient(Options{Command: []string{"/none"}, Place: driver.Place{Dir: dir}, Version: "1", Log: slog.New(slog.DiscardHandler)})
			kept := make(chan struct{})
			go func() { defer close(kept); keep(t, c) }()
			until(t, "the service does not say what hangs", func() bool {
				late, err := CheckService(dir)
				return err == nil && len(late) == 1 && late[0].Name == name && late[0].Vital == vital
			})
			if monitor.Alive() == vital {
				t.Errorf("the watchdog does not expire: %v", monitor.Alive())
			}
			close(d.free)
			<-kept
			c.Close()
			cancel()
			if err := <-ended; err != nil {
				t.Error(err)
			}
		})
	}
}

// A frozen service looks dead to the daemon although nothing is attached; so does a frozen guardian in
// use, which is replaced. Without a service and without attached programs nothing is late.
func TestFrozenGuardianLooksDead(t *testing.T) {
	t.Parallel()
	var m health.Monitor
	part := m.Add("guardian process", 50*time.Millisecond, false)
	dir := t.TempDir()
	c := NewClient(Options{Command: []string{"/none"}, Place: driver.Place{Dir: dir}, Version: "1", Log: slog.New(slog.DiscardHandler), Alive: part})
	defer c.Close()
	if there, works := c.check(); there || !works {
		t.Errorf("no guardian is there: %v, %v", there, works)
	}
	if m.States()[0].Late() {
		t.Error("late without a guardian")
	}
	frozenService(t, dir, 4)
	until(t, "the frozen service does not look dead", func() bool { return m.States()[0].Late() })
}

// A guardian whose end nobody noticed is replaced. Before, a daemon that had no descriptor left to watch its
// guardian could attach to nothing after that one's end.
func TestUnnoticedEndOfAGuardian(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	serve := func() (stop func()) {
		ready, ended := make(chan struct{}), make(chan error, 1)
		ctx, cancel := context.WithCancel(context.Background())
		go func() {
			ended <- Serve(ctx, ServiceOptions{
				Dir: dir, Drivers: []driver.Driver{&fakeDriver{calls: map[uint64]int{}}}, Version: "1",
				Log: slog.New(slog.DiscardHandler), Ready: func() { close(ready) }, Health: &health.Monitor{},
			})
		}()
		<-ready
		return func() {
			cancel()
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}
	}
	stop := serve()
	c := NewClient(Options{Command: []string{"/none"}, Place: driver.Place{Dir: dir}, Version: "1", Log: slog.New(slog.DiscardHandler)})
	defer c.Close()
	unwatched, err := c.dial()
	if err != nil {
		t.Fatal(err)
	}
	c.lock()
	c.link = unwatched
	c.unlock()
	stop()
	defer serve()()
	until(t, "the dead guardian stays in use", func() bool {
		c.lock()
		defer c.unlock()
		return c.link != unwatched
	})
	keep(t, c)
}
