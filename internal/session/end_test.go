// SPDX-License-Identifier: Apache-2.0

package session_test

import (
	"context"
	"errors"
	"net"
	"os"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"xsched/internal/driver"
	"xsched/internal/identity"
	"xsched/internal/loop"
	"xsched/internal/model"
	"xsched/internal/session"
	"xsched/internal/session/sessiontest"
	"xsched/internal/wire"
)

// attachFake attaches to this process, with hardware in memory, and suspends it with an operation
// that does not return until hang is closed.
func attachFake(t *testing.T, h *sessiontest.Fixture) (hw *sessiontest.Hardware, hang chan struct{}, ended chan bool) {
	t.Helper()
	pidfd, err := unix.PidfdOpen(os.Getpid(), 0)
	if err != nil {
		t.Fatal(err)
	}
	hang, ended = make(chan struct{}), make(chan bool, 1)
	hw = &sessiontest.Hardware{Hang: hang}
	caps := map[model.DeviceID]driver.Capability{sessiontest.GPU: {MaxLevel: model.LevelInterrupt}}
	hw.Caps = caps
	identity := loop.Identity{PID: os.Getpid(), ClientPID: os.Getpid(), User: identity.OnHost(os.Getuid())}
	_, err = h.Attach(context.Background(), identity, model.HintChange{}, sessiontest.Attached{Hardware: hw, Ended: func(restored bool) { ended <- restored }}, pidfd)
	if err != nil {
		t.Fatal(err)
	}
	if err := h.SetHeld(context.Background(), os.Getpid(), true); err != nil {
		t.Fatal(err)
	}
	sessiontest.Await(t, "an operation in flight", func() bool {
		targets := h.Server.Stats().Targets // none before the decision is carried out
		return len(targets) == 1 && targets[0].StuckSince != 0
	})
	return hw, hang, ended
}

// What root orders while a program that was attached joins by itself counts for its new session. The
// campaign found a program that ran on although it was suspended by hand.
func TestOrdersDuringJoin(t *testing.T) {
	for _, held := range []bool{true, false} {
		ending := make(chan struct{}, 2)
		h := sessiontest.Start(t, func(c *sessiontest.Config) {
			c.Session.Ended = func(loop.Identity, string) { ending <- struct{}{} }
		})
		_, hang, _ := attachFake(t, h)
		if err := h.SetHeld(t.Context(), os.Getpid(), !held); err != nil {
			t.Fatal(err)
		}
		ordered := make(chan error, 1)
		go func() {
			<-ending
			ordered <- h.SetHeld(context.Background(), os.Getpid(), held)
			close(hang)
		}()
		h.Client(t, 0, wire.LevelBlock)
		if err := <-ordered; err != nil {
			t.Fatal(err)
		}
		all, err := h.Clients(t.Context())
		if err != nil || len(all) != 1 || all[0].Attached || all[0].Held != held {
			t.Errorf("held %v: %v, %+v", held, err, all)
		}
	}
}

// A suspension that completes after the end of the session is undone. Until then the files stay open
// and Detach does not report success.
func TestLateSuspensionIsUndone(t *testing.T) {
	h := sessiontest.Start(t, nil)
	hw, hang, ended := attachFake(t, h)
	detached := make(chan error, 1)
	go func() { _, err := h.Detach(context.Background(), os.Getpid()); detached <- err }()
	sessiontest.Await(t, "the session is over", func() bool { return h.Server.Stats().Sessions == 0 })
	time.Sleep(2 * session.RestoreTime)
	select {
	case err := <-detached:
		close(hang)
		t.Fatalf("detached: %v", err)
	case <-ended:
		close(hang)
		t.Fatal("the guardian lets go")
	default:
	}
	if hw.Closed.Load() {
		t.Error("files are closed")
	}
	close(hang)
	if err := <-detached; err != nil {
		t.Errorf("detached: %v", err)
	}
	if !<-ended || !hw.Closed.Load() || hw.Now().Suspend != 0 {
		t.Errorf("left at %+v, closed %v", hw.Now(), hw.Closed.Load())
	}
}

// Detach reports a device that does not answer in time.
func TestDetachReportsStuckDevice(t *testing.T) {
	h := sessiontest.Start(t, nil)
	_, hang, ended := attachFake(t, h)
	ctx, cancel := context.WithCancel(context.Background())
	detached := make(chan error, 1)
	go func() { _, err := h.Detach(ctx, os.Getpid()); detached <- err }()
	sessiontest.Await(t, "the session is over", func() bool { return h.Server.Stats().Sessions == 0 })
	cancel()
	if err := <-detached; !errors.Is(err, session.ErrNotFreed) {
		t.Errorf("detached: %v", err)
	}
	close(hang)
	<-ended
}

// A signal that interrupts the poll, such as those of the Go runtime, is not the end of a process.
func TestAliveUnderSignals(t *testing.T) {
	pidfd, err := unix.PidfdOpen(os.Getpid(), 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(pidfd) }()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	tid, stop := unix.Gettid(), make(chan struct{})
	var sender sync.WaitGroup
	sender.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				_ = unix.Tgkill(os.Getpid(), tid, unix.SIGURG)
			}
		}
	})
	for end := time.Now().Add(300 * time.Millisecond); time.Now().Before(end); {
		if !identity.Alive(pidfd) {
			t.Error("taken for dead")
			break
		}
	}
	close(stop)
	sender.Wait()
}

// TestLeavesDuringHandshake: a program that ends before its WELCOME left; the reason is no system call.
func TestLeavesDuringHandshake(t *testing.T) {
	reasons := make(chan string, 64)
	h := sessiontest.Start(t, func(c *sessiontest.Config) {
		c.Session.Ended = func(_ loop.Identity, why string) { reasons <- why }
	})
	for range cap(reasons) {
		conn, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: h.Path, Net: "unixpacket"})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Write(wire.EncodeHello(wire.Hello{PID: uint32(os.Getpid())})); err != nil {
			t.Fatal(err)
		}
		_ = conn.Close()
		select {
		case why := <-reasons:
			if why != "connection closed" {
				t.Fatalf("left because of %q", why)
			}
		case <-time.After(10 * time.Second):
			t.Fatal("no end of the session was reported")
		}
	}
}

// TestRemovedWithTotals: what a program used until its end is reported, however short its life was.
func TestRemovedWithTotals(t *testing.T) {
	type left struct {
		who      loop.Identity
		totals   []loop.GPUTotal
		requests loop.Counts
	}
	removed := make(chan left, 1)
	h := sessiontest.Start(t, func(c *sessiontest.Config) {
		c.Session.Removed = func(who loop.Identity, totals []loop.GPUTotal, requests loop.Counts) {
			removed <- left{who, totals, requests}
		}
	})
	c := h.Client(t, 0, wire.LevelAuto)
	c.Queue(0)
	c.Busy(0, true)
	sessiontest.Await(t, "the queue is busy", func() bool { all := h.Only(t).Queues; return len(all) == 1 && all[0].Busy })
	time.Sleep(20 * time.Millisecond)
	if err := h.SetHeld(t.Context(), h.Only(t).PID, true); err != nil {
		t.Fatal(err)
	}
	time.Sleep(20 * time.Millisecond)
	c.Busy(0, false)
	sessiontest.Await(t, "the request has ended", func() bool { v := h.Only(t); return v.Counts().Requests == 1 })
	want := h.Only(t).Totals
	c.Close()
	select {
	case got := <-removed:
		if len(want) != 1 || want[0].Ran < 20*time.Millisecond || want[0].Waited < 20*time.Millisecond || !slices.Equal(got.totals, want) || got.requests.Requests != 1 {
			t.Errorf("%+v, want %+v and one request", got, want)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("no end of the session was reported")
	}
}
