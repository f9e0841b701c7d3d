// SPDX-License-Identifier: Apache-2.0

package session_test

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"xsched/internal/logging"
	"xsched/internal/model"
	"xsched/internal/session/sessiontest"
	"xsched/internal/wire"
)

// A library of the previous release gets a session in its own version: frames, page, shared lease.
func TestPreviousVersion(t *testing.T) {
	h := sessiontest.Start(t, sessiontest.Separate)
	hello := wire.Hello{Hint: wire.Hint{Said: wire.HintPriority, Priority: -10}}
	low, err := sessiontest.DialVersion(h.Path, hello, wire.VersionMin)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(low.Close)
	if v := low.Page.Version(); v != wire.VersionMin {
		t.Errorf("page of version %d", v)
	}
	high := h.Client(t, 10, wire.LevelBlock)
	low.HandOver(t)
	low.Queue(0)
	high.Queue(0)
	low.Busy(0, true)
	high.Busy(0, true)
	sessiontest.Await(t, "the low is suspended", func() bool { return h.Hardware(0).Now().Suspend == model.LevelInterrupt })
	epoch, deadline := low.Page.Lease()
	if epoch == 0 || deadline == 0 {
		t.Error("no suspension under the shared lease")
	}
	low.Page.DeviceLeases(func(i int, _ model.DeviceID, _ uint64, _ model.Time) { t.Errorf("lease %d in use", i) })
	low.Page.SetRecovered(epoch)
	sessiontest.Await(t, "a new epoch after a recovery", func() bool { e, _ := low.Page.Lease(); return e > epoch })
	low.Hint(t, wire.QueueAll, wire.Hint{Said: wire.HintPriority, Priority: 20}, "")
	sessiontest.Await(t, "its hint counts", func() bool { return h.Hardware(0).Now().Suspend == 0 })

	// A frame of another version ends the session.
	if _, err := low.Conn.Write(wire.EncodeHint(wire.HintFrame{Queue: wire.QueueAll})); err != nil {
		t.Fatal(err)
	}
	if _, _, err := sessiontest.Receive(low.Conn); err == nil {
		t.Error("the session goes on")
	}
}

// Any other version is refused. A process that tries again and again is in the log once.
func TestRefusedVersionIsLoggedOnce(t *testing.T) {
	var log lockedBuffer
	h := sessiontest.Start(t, func(c *sessiontest.Config) {
		c.Session.Log = slog.New(slog.NewTextHandler(&log, nil))
	})
	for _, version := range []uint32{wire.VersionMin - 1, wire.Version + 1, wire.VersionMin - 1} {
		_, err := sessiontest.DialVersion(h.Path, wire.Hello{}, version)
		want := fmt.Sprintf("version %d, the daemon %d and %d", version, wire.Version, wire.VersionMin)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("version %d: %v", version, err)
		}
	}
	if n := h.Server.Stats().Refused["version"]; n != 3 {
		t.Errorf("%d refusals counted", n)
	}
	if n := strings.Count(log.String(), "client refused"); n != 1 {
		t.Errorf("%d lines:\n%s", n, log.String())
	}
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// TestRefusalsOfOthersAreLogged: one user's refused processes, more than the log has lines for, leave room for another
// user's.
func TestRefusalsOfOthersAreLogged(t *testing.T) {
	var text lockedBuffer
	log := logging.New(&text, func(w io.Writer) slog.Handler { return slog.NewTextHandler(w, nil) })
	uids := make([]int, 400, 402)
	for i := range uids {
		uids[i] = 1000
	}
	uids = append(uids, 1001, 1001)
	h := sessiontest.Start(t, func(c *sessiontest.Config) {
		sessiontest.Users(c, uids...)
		c.Session.Log = slog.New(log)
	})
	for range uids {
		if _, err := sessiontest.DialVersion(h.Path, wire.Hello{}, wire.Version+1); err == nil {
			t.Fatal("a session of an unknown version")
		}
	}
	log.Close(time.Second)
	if n := strings.Count(text.String(), "1001"); n != 2 {
		t.Errorf("the log has %d of 2 refusals of the second user:\n%s", n, text.String())
	}
	if n := strings.Count(text.String(), "client refused"); n < 4 || n > 50 {
		t.Errorf("%d lines", n)
	}
}
