// SPDX-License-Identifier: Apache-2.0

package hub

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

	"xsched/internal/driver/nvidia"
	"xsched/internal/engine"
	"xsched/internal/model"
	"xsched/internal/seqpacket"
	"xsched/internal/wire"
)

func TestVersionMismatchNamesBoth(t *testing.T) {
	h := startHub(t, nil)
	conn, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: h.path, Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	b := wire.EncodeHello(wire.Hello{})
	b[4] = 99
	_, _ = conn.Write(b)
	_, err = welcome(conn)
	if err == nil || !strings.Contains(err.Error(), "99") || !strings.Contains(err.Error(), fmt.Sprint(wire.Version)) {
		t.Errorf("got %v", err)
	}
	if h.Stats().Refused["version"] != 1 {
		t.Error("not counted")
	}
}

// Clients that send rubbish end by themselves; one that behaves notices nothing.
func TestGarbageClients(t *testing.T) {
	h := startHub(t, nil)
	good := h.join(t, 0, wire.LevelBlock)
	good.queue(0)
	before := openFDs(t)
	rng := rand.New(rand.NewPCG(1, 2))
	rm, _ := nvidia.EncodeRM([]nvidia.RMEvent{{Kind: nvidia.RMAlloc}, {Kind: nvidia.RMFree}})
	two, _ := nvidia.EncodeRM([]nvidia.RMEvent{{Kind: nvidia.RMClient, Client: 1}})
	for i := range 60 {
		conn, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: h.path, Net: "unixpacket"})
		if err != nil {
			t.Fatal(err)
		}
		if i%2 == 0 {
			_, _ = conn.Write(wire.EncodeHello(wire.Hello{}))
			if c, err := welcome(conn); err == nil {
				defer c.page.Release()
				defer func() { _ = unix.Close(c.bell) }()
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
			_, _, _ = conn.WriteMsgUnix(rm, unix.UnixRights(null, null), nil)
		case 4: // more than a frame may carry
			_, _, _ = conn.WriteMsgUnix(two, unix.UnixRights(null, null, null, null), nil)
		case 5: // cut
			_, _ = conn.Write(two[:10])
		}
		_ = unix.Close(null)
		_ = conn.SetReadDeadline(time.Now().Add(5 * time.Second))
		for {
			if _, fds, err := receive(conn, make([]byte, 4096)); err != nil {
				if errors.Is(err, os.ErrDeadlineExceeded) {
					t.Errorf("garbage %d was not answered with an end", i)
				}
				seqpacket.CloseAll(fds)
				break
			}
		}
		_ = conn.Close()
	}
	await(t, "only the good one left", func() bool { return h.count() == 1 })
	await(t, "no descriptor left", func() bool { return openFDs(t) <= before+30 }) // 30 doorbells are the test's
	good.busy(0, true)
	await(t, "the good one is served", func() bool {
		v, _ := h.Sessions(context.Background())
		return v[0].Queues[0].Busy
	})
}

// A client writes rubbish into its page and rings all the time; another's
// decisions still come.
func TestGarbagePage(t *testing.T) {
	h := startHub(t, func(c *Config, _ *engine.Config) { strangers(c) })
	bad := h.join(t, 5, 0)
	low, high := h.join(t, -10, wire.LevelBlock), h.join(t, 10, wire.LevelBlock)
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
				bad.page.CreateQueue(i, rng.Uint32(), rng.Uint32())
				bad.page.SetBusy(i, rng.IntN(2) == 0, model.Time(rng.Int64()))
				if rng.IntN(3) == 0 {
					bad.page.DestroyQueue(i)
				}
			}
			bad.page.SetRecovered(rng.Uint64())
			bad.ring()
		}
	}()
	low.queue(0)
	high.queue(0)
	low.busy(0, true)
	for range 5 {
		high.busy(0, true)
		await(t, "low is held", func() bool { return low.held(0) })
		high.busy(0, false)
		await(t, "low runs", func() bool { return !low.held(0) })
	}
	close(done)
	<-stopped
}

// A client that floods its socket is slowed down; others are served.
func TestFlood(t *testing.T) {
	h := startHub(t, nil)
	bad, good := h.join(t, 0, 0), h.join(t, 0, 0)
	packet, _ := nvidia.EncodeRM([]nvidia.RMEvent{{Kind: nvidia.RMTimeslice, Value: 1}})
	_ = bad.conn.SetWriteDeadline(time.Now().Add(300 * time.Millisecond))
	sent := 0
	for {
		if _, err := bad.conn.Write(packet); err != nil {
			break
		}
		sent++
	}
	good.queue(0)
	await(t, "the good one is served", func() bool {
		v, _ := h.Sessions(context.Background())
		return len(v) == 2 && len(v[1].Queues) == 1
	})
	hw := h.hardware(0)
	hw.mu.Lock()
	defer hw.mu.Unlock()
	if len(hw.slices) > frameBurst+frameRate*3 {
		t.Errorf("%d of %d frames were taken at once", len(hw.slices), sent)
	}
}
