// SPDX-License-Identifier: Apache-2.0

// Package sessiontest is the fixture of the tests of packages session and loop: a server with a
// loop and a driver in memory, and clients that act as shims.
package sessiontest

import (
	"errors"
	"fmt"
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"xsched/internal/clock"
	"xsched/internal/model"
	"xsched/internal/seqpacket"
	"xsched/internal/wire"
)

// Client acts as a shim: it joins, has a page, and rings.
type Client struct {
	Conn *net.UnixConn
	Page wire.ClientPage
	Bell int

	version uint32 // of its frames
}

// Dial connects and sends HELLO; a refusal is an error with its reason.
func Dial(path string, h wire.Hello) (*Client, error) { return DialVersion(path, h, wire.Version) }

// DialVersion is Dial for a shim of another version.
func DialVersion(path string, h wire.Hello, version uint32) (*Client, error) {
	conn, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: path, Net: "unixpacket"})
	if err != nil {
		return nil, err
	}
	copy(h.Command[:], "test")
	if _, err := conn.Write(wire.Stamp(wire.EncodeHello(h), version)); err != nil && !errors.Is(err, unix.EPIPE) { // a server that refuses does not wait for HELLO
		_ = conn.Close()
		return nil, err
	}
	c, err := Welcome(conn)
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	c.version = version
	return c, nil
}

// Send sends one packet in the session's version.
func (c *Client) Send(packet []byte, fds ...int) error {
	if c.version != 0 {
		packet = wire.Stamp(packet, c.version)
	}
	_, _, err := c.Conn.WriteMsgUnix(packet, unix.UnixRights(fds...), nil)
	return err
}

// Receive reads one packet and its descriptors.
func Receive(conn *net.UnixConn) ([]byte, []int, error) {
	buf, oob := make([]byte, wire.FrameMaxBytes+1), make([]byte, 256)
	n, oobn, _, _, err := conn.ReadMsgUnix(buf, oob)
	fds := seqpacket.Rights(oob[:max(oobn, 0)])
	if err == nil && n == 0 {
		err = net.ErrClosed
	}
	if err != nil {
		return nil, fds, err
	}
	return buf[:n], fds, nil
}

// Welcome waits for the answer to HELLO.
func Welcome(conn *net.UnixConn) (*Client, error) {
	_ = conn.SetReadDeadline(time.Now().Add(10 * time.Second))
	packet, fds, err := Receive(conn)
	if err != nil {
		return nil, err
	}
	if r, err := wire.DecodeRefused(packet); err == nil {
		return nil, fmt.Errorf("refused: %s", r.ReasonString())
	}
	if _, err := wire.DecodeWelcome(packet); err != nil || len(fds) != 2 {
		seqpacket.CloseAll(fds)
		return nil, fmt.Errorf("welcome with %d descriptors: %w", len(fds), err)
	}
	page, err := wire.MapPage(fds[0])
	_ = unix.Close(fds[0])
	if err != nil {
		return nil, err
	}
	return &Client{Conn: conn, Page: wire.ClientPage{Page: page}, Bell: fds[1]}, nil
}

// Ring rings the doorbell.
func (c *Client) Ring() {
	one := [8]byte{1}
	_, _ = unix.Write(c.Bell, one[:])
}

// Busy marks a queue busy or idle, and rings unless the queue is quiet.
func (c *Client) Busy(slot int, on bool) {
	if c.Page.SetBusy(slot, on, clock.Now()) && !c.Page.Quiet(slot) {
		c.Ring()
	}
}

// Queue creates a queue on GPU.
func (c *Client) Queue(slot int) {
	c.Page.CreateQueue(slot, 0, 1<<8)
	c.Ring()
}

// Held reports whether the gate of a queue is closed.
func (c *Client) Held(slot int) bool { h, _, _ := c.Page.Gate(slot); return h }

// Close closes the connection, the doorbell and the page.
func (c *Client) Close() {
	_ = c.Conn.Close()
	_ = unix.Close(c.Bell)
	c.Page.Release()
}

// Lease reads the lease of the process's first device.
func (c *Client) Lease() (epoch uint64, deadline model.Time) {
	c.Page.DeviceLeases(func(i int, _ model.DeviceID, e uint64, d model.Time) {
		if i == 0 {
			epoch, deadline = e, d
		}
	})
	return epoch, deadline
}

// Recovered reports a recovery of that device.
func (c *Client) Recovered(epoch uint64) { c.Page.SetDeviceRecovered(0, epoch) }

// Hint sends a hint about the process (wire.QueueAll) or a queue.
func (c *Client) Hint(t testing.TB, queue uint32, h wire.Hint, policy string) {
	t.Helper()
	f := wire.HintFrame{Queue: queue, Hint: h}
	if queue != wire.QueueAll {
		f.Generation = c.Page.Queue(int(queue)).Generation
	}
	copy(f.Policy[:wire.PolicyBytes-1], policy)
	if err := c.Send(wire.EncodeHint(f)); err != nil {
		t.Fatal(err)
	}
}

// HandOver sends the driver a descriptor, which enables every level on GPU.
func (c *Client) HandOver(t testing.TB) {
	t.Helper()
	fd, err := unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(fd) }()
	if err := c.Send(Events(EventHandOver), fd); err != nil {
		t.Fatal(err)
	}
}
