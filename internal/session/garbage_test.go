// SPDX-License-Identifier: Apache-2.0

package session_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"xsched/internal/model"
	"xsched/internal/seqpacket"
	"xsched/internal/session"
	"xsched/internal/session/sessiontest"
	"xsched/internal/wire"
)

func TestVersionMismatchNamesBoth(t *testing.T) {
	h := sessiontest.Start(t, nil)
	conn, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: h.Path, Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	b := wire.EncodeHello(wire.Hello{})
	b[4] = 99
	_, _ = conn.Write(b)
	_, err = sessiontest.Welcome(conn)
	if err == nil || !strings.Contains(err.Error(), "99") || !strings.Contains(err.Error(), fmt.Sprint(wire.Version)) {
		t.Errorf("got %v", err)
	}
	if h.Server.Stats().Refused["version"] != 1 {
		t.Error("not counted")
	}
}

// A program that ends before its session begins was not refused: it is neither counted nor logged as
// such. One that keeps silent is.
func TestEarlyEndIsNoRefusal(t *testing.T) {
	h := sessiontest.Start(t, nil)
	dial := func() *net.UnixConn {
		conn, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: h.Path, Net: "unixpacket"})
		if err != nil {
			t.Fatal(err)
		}
		return conn
	}
	for range 5 {
		_ = dial().Close()
	}
	// A refusal after them shows that the server is through with them.
	conn := dial()
	defer func() { _ = conn.Close() }()
	_, _ = conn.Write([]byte("garbage"))
	if _, err := sessiontest.Welcome(conn); err == nil {
		t.Fatal("garbage was welcome")
	}
	if got := h.Server.Stats().Refused; len(got) != 1 || got["malformed"] != 1 {
		t.Errorf("refused: %v", got)
	}
}

// Malformed packets end the session of their sender and affect no other client.
func TestGarbageClients(t *testing.T) {
	h := sessiontest.Start(t, nil)
	good := h.Client(t, 0, wire.LevelBlock)
	good.Queue(0)
	before := sessiontest.OpenFDs(t)
	rng := rand.New(rand.NewPCG(1, 2))
	other := sessiontest.Events(sessiontest.EventOther, sessiontest.EventOther)
	handOver := sessiontest.Events(sessiontest.EventHandOver)
	for i := range 60 {
		conn, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: h.Path, Net: "unixpacket"})
		if err != nil {
			t.Fatal(err)
		}
		if i%2 == 0 {
			_, _ = conn.Write(wire.EncodeHello(wire.Hello{}))
			if c, err := sessiontest.Welcome(conn); err == nil {
				defer c.Page.Release()
				defer func() { _ = unix.Close(c.Bell) }()
			}
		}
		null, _ := unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		switch i % 6 {
		case 0, 1:
			b := make([]byte, rng.IntN(5000))
			for j := range b {
				b[j] = byte(rng.Uint32())
			}
			_, _ = conn.Write(b)
		case 2, 3: // descriptors where none belong
			_, _, _ = conn.WriteMsgUnix(other, unix.UnixRights(null, null), nil)
		case 4: // more than a frame may carry
			_, _, _ = conn.WriteMsgUnix(handOver, unix.UnixRights(null, null, null, null), nil)
		case 5: // cut
			_, _ = conn.Write(handOver[:10])
		}
		_ = unix.Close(null)
		_ = conn.SetReadDeadline(time.Now().Add(5 * time.Second))
		for {
			if _, fds, err := sessiontest.Receive(conn); err != nil {
				if errors.Is(err, os.ErrDeadlineExceeded) {
					t.Errorf("garbage %d was not answered with an end", i)
				}
				seqpacket.CloseAll(fds)
				break
			}
		}
		_ = conn.Close()
	}
	sessiontest.Await(t, "only the good one left", func() bool { return h.Server.Stats().Sessions == 1 })
	sessiontest.Await(t, "no descriptor left", func() bool { return sessiontest.OpenFDs(t) <= before+30 }) // 30 doorbells are the test's
	good.Busy(0, true)
	sessiontest.Await(t, "the good one is served", func() bool {
		v, _ := h.Clients(context.Background())
		return v[0].Queues[0].Busy
	})
}

// A client that writes random values into its page and rings constantly does not delay decisions
// about other clients.
func TestGarbagePage(t *testing.T) {
	h := sessiontest.Start(t, func(c *sessiontest.Config) { sessiontest.Separate(c) })
	bad := h.Client(t, 5, 0)
	low, high := h.Client(t, -10, wire.LevelBlock), h.Client(t, 10, wire.LevelBlock)
	done := make(chan struct{})
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		rng := rand.New(rand.NewPCG(3, 4))
		for {
			select {
			case <-done:
				return
			default:
			}
			for range 50 {
				i := rng.IntN(wire.MaxQueues)
				bad.Page.CreateQueue(i, rng.Uint32(), rng.Uint32())
				bad.Page.SetBusy(i, rng.IntN(2) == 0, model.Time(rng.Int64()))
				if rng.IntN(3) == 0 {
					bad.Page.DestroyQueue(i)
				}
			}
			bad.Page.SetRecovered(rng.Uint64())
			bad.Page.SetDeviceRecovered(rng.IntN(wire.MaxLeases), rng.Uint64())
			bad.Ring()
		}
	}()
	low.Queue(0)
	high.Queue(0)
	low.Busy(0, true)
	for range 5 {
		high.Busy(0, true)
		sessiontest.Await(t, "low is held", func() bool { return low.Held(0) })
		high.Busy(0, false)
		sessiontest.Await(t, "low runs", func() bool { return !low.Held(0) })
	}
	close(done)
	<-stopped
}

// The rate limit slows a client that floods its socket; other clients are served.
func TestFlood(t *testing.T) {
	h := sessiontest.Start(t, nil)
	bad, good := h.Client(t, 0, 0), h.Client(t, 0, 0)
	packet := sessiontest.Events(sessiontest.EventTimeslice)
	_ = bad.Conn.SetWriteDeadline(time.Now().Add(300 * time.Millisecond))
	sent := 0
	for {
		if _, err := bad.Conn.Write(packet); err != nil {
			break
		}
		sent++
	}
	good.Queue(0)
	sessiontest.Await(t, "the good one is served", func() bool {
		v, _ := h.Clients(context.Background())
		return len(v) == 2 && len(v[1].Queues) == 1
	})
	hw := h.Hardware(0)
	if n := hw.Timeslices(); n > session.FrameBurst+session.FrameRate*3 {
		t.Errorf("%d of %d frames were taken at once", n, sent)
	}
}
