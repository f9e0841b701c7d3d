// SPDX-License-Identifier: Apache-2.0

package session_test

import (
	"context"
	"encoding/binary"
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"xsched/internal/seqpacket"
	"xsched/internal/session/sessiontest"
	"xsched/internal/wire"
)

// hostile is a client that does with its socket, page and doorbell what the input says.
type hostile struct {
	conn *net.UnixConn
	page []byte
	bell int
}

func newHostile(t *testing.T, path string) *hostile {
	t.Helper()
	conn, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: path, Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	h := &hostile{conn: conn, bell: -1}
	_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
	if _, err := conn.Write(wire.EncodeHello(wire.Hello{})); err != nil {
		t.Fatal(err)
	}
	_, fds, err := sessiontest.Receive(conn)
	if err != nil || len(fds) != 2 {
		seqpacket.CloseAll(fds)
		_ = conn.Close()
		t.Skipf("not welcome: %v", err) // sessions of earlier inputs are still ending
	}
	h.bell = fds[1]
	h.page, err = unix.Mmap(fds[0], 0, wire.PageBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	_ = unix.Close(fds[0])
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func (h *hostile) close() {
	_ = h.conn.Close()
	_ = unix.Close(h.bell)
	_ = unix.Munmap(h.page)
}

// The operations of an input: one byte, then its operands.
const (
	opRing  = iota
	opWord  // u32 offset, u64 value: into the page
	opFrame // u8 type, u8 group, u8 length, bytes: with a valid header
	opRaw   // u8 length, bytes: as they are
	opFile  // u8 type, u8 group, u8 length, bytes: a frame with a descriptor
	ops
)

func (h *hostile) act(in []byte) {
	take := func(n int) []byte {
		out := make([]byte, n)
		in = in[copy(out, in):]
		return out
	}
	for range 64 {
		if len(in) == 0 {
			return
		}
		switch take(1)[0] % ops {
		case opRing:
			_, _ = unix.Write(h.bell, []byte{1, 0, 0, 0, 0, 0, 0, 0})
		case opWord:
			at := binary.LittleEndian.Uint32(take(4)) % (wire.PageBytes / 8) * 8
			copy(h.page[at:], take(8))
		case opFrame:
			_, _ = h.conn.Write(h.frame(take))
		case opRaw:
			_, _ = h.conn.Write(take(int(take(1)[0])))
		case opFile:
			fd, err := unix.MemfdCreate("fuzz", unix.MFD_CLOEXEC)
			if err != nil {
				return
			}
			_, _, _ = h.conn.WriteMsgUnix(h.frame(take), unix.UnixRights(fd), nil)
			_ = unix.Close(fd)
		}
	}
}

// frame returns a frame whose header is valid.
func (h *hostile) frame(take func(int) []byte) []byte {
	head := take(3)
	body := take(int(head[2]) * 4)
	b := make([]byte, 16, 16+len(body))
	binary.LittleEndian.PutUint32(b, wire.FrameMagic)
	binary.LittleEndian.PutUint32(b[4:], wire.Version)
	binary.LittleEndian.PutUint32(b[8:], uint32(head[0])+wire.FrameGroup*uint32(head[1]%4))
	binary.LittleEndian.PutUint32(b[12:], uint32(16+len(body)))
	return append(b, body...)
}

// A client may send anything, in any order, while it writes anything into its page. The loop goes
// on, and another client keeps its queue.
func FuzzSession(f *testing.F) {
	queue := func(at uint32, value uint64) []byte {
		b := binary.LittleEndian.AppendUint32([]byte{opWord}, at/8)
		return binary.LittleEndian.AppendUint64(b, value)
	}
	busy := append(queue(wire.OffHeaderQueueCount, 1), queue(wire.HeaderBytes+wire.OffQueueGeneration, 1)...)
	busy = append(busy, queue(wire.HeaderBytes+wire.OffQueueTransitions, 1)...)
	f.Add(append(busy, opRing))
	hint := wire.EncodeHint(wire.HintFrame{Queue: wire.QueueAll, Hint: wire.Hint{Said: wire.HintAll}})[16:]
	f.Add(append(append(append([]byte(nil), busy...), opRing, opFrame, byte(wire.FrameHint), 0, byte(len(hint)/4)), hint...))
	f.Add([]byte{opRaw, 3, 1, 2, 3})
	f.Add([]byte{opFile, 0, 1, 8})

	world := sessiontest.Start(f, nil)
	good := world.Client(f, 0, wire.LevelBlock)
	good.Queue(0)
	f.Fuzz(func(t *testing.T, in []byte) {
		h := newHostile(t, world.Path)
		h.act(in)
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		all, err := world.Clients(ctx) // the loop answers
		if err != nil {
			t.Fatalf("the loop does not answer: %v", err)
		}
		found := false
		for i := range all {
			found = found || len(all[i].Queues) == 1 && all[i].Hint.Level != 0
		}
		if !found {
			t.Fatal("another client lost its queue")
		}
		h.close()
	})
}
