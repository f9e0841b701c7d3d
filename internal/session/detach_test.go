// SPDX-License-Identifier: Apache-2.0

package session_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"xsched/internal/engine"
	"xsched/internal/identity"
	"xsched/internal/loop"
	"xsched/internal/model"
	"xsched/internal/session/sessiontest"
	"xsched/internal/wire"
)

// After Detach the process is unknown. A suspend that followed at once would otherwise reach the old
// session, and the process would run on.
func TestDetachedIsForgotten(t *testing.T) {
	h, ctx := sessiontest.Start(t, nil), context.Background()
	pidfd, err := unix.PidfdOpen(os.Getpid(), 0)
	if err != nil {
		t.Fatal(err)
	}
	hw := sessiontest.Attached{Hardware: &sessiontest.Hardware{}, Ended: func(bool) {}}
	who := loop.Identity{PID: os.Getpid(), User: identity.OnHost(os.Getuid())}
	if _, err := h.Attach(ctx, who, model.HintChange{}, hw, pidfd); err != nil {
		t.Fatal(err)
	}
	busy := make(chan struct{})
	go func() {
		_ = h.Engine(ctx, func(*engine.Engine) { close(busy); time.Sleep(50 * time.Millisecond) })
	}()
	<-busy // the loop forgets the client late
	if _, err := h.Detach(ctx, os.Getpid()); err != nil {
		t.Fatal(err)
	}
	if n := h.Server.Stats().Sessions; n != 0 {
		t.Errorf("%d sessions after Detach", n)
	}
}

// A program that was attached and joins later has one session, and stays suspended if it was.
func TestJoinReplacesAttachment(t *testing.T) {
	h, ctx := sessiontest.Start(t, nil), context.Background()
	pidfd, err := unix.PidfdOpen(os.Getpid(), 0)
	if err != nil {
		t.Fatal(err)
	}
	freed := make(chan bool, 1)
	hw := sessiontest.Attached{Hardware: &sessiontest.Hardware{}, Ended: func(restored bool) { freed <- restored }}
	who := loop.Identity{PID: os.Getpid(), User: identity.OnHost(os.Getuid())}
	if _, err := h.Attach(ctx, who, model.HintChange{}, hw, pidfd); err != nil {
		t.Fatal(err)
	}
	if err := h.SetHeld(ctx, os.Getpid(), true); err != nil {
		t.Fatal(err)
	}
	h.Client(t, 0, wire.LevelBlock)
	if !<-freed {
		t.Error("the attachment ended without restoring the process")
	}
	all, err := h.Clients(ctx)
	if err != nil || len(all) != 1 || all[0].Attached || !all[0].Held {
		t.Fatalf("%v, %+v", err, all)
	}
	again, err := unix.PidfdOpen(os.Getpid(), 0)
	if err != nil {
		t.Fatal(err)
	}
	hw = sessiontest.Attached{Hardware: &sessiontest.Hardware{}, Ended: func(bool) {}}
	if _, err := h.Attach(ctx, who, model.HintChange{}, hw, again); err == nil {
		t.Error("attached to a process that has joined")
	}
}

// A session whose process can't be watched does not begin, and leaves no descriptor open.
func TestUnwatchedSessionLeaksNothing(t *testing.T) {
	h := sessiontest.Start(t, nil)
	file, err := os.Create(filepath.Join(t.TempDir(), "no pidfd"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	fd, err := unix.FcntlInt(file.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	hw := sessiontest.Attached{Hardware: &sessiontest.Hardware{}, Ended: func(bool) {}}
	who := loop.Identity{PID: os.Getpid(), User: identity.OnHost(os.Getuid())}
	if _, err := h.Attach(t.Context(), who, model.HintChange{}, hw, fd); err == nil {
		t.Error("attached to a process that nobody watches")
	}
	sessiontest.Await(t, "the descriptor is closed", func() bool {
		name, _ := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
		return name != file.Name()
	})
	sessiontest.Await(t, "no session is left", func() bool { return h.Server.Stats().Sessions == 0 })
}
