// SPDX-License-Identifier: Apache-2.0

package quarantine

import (
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A refused connection gets the refusal and its end, whatever the peer has sent. Descriptors in it are
// closed by the process, not by the daemon.
func TestRefusedConnections(t *testing.T) {
	for _, network := range []string{"unixpacket", "unix"} {
		inner, err := net.ListenUnix(network, &net.UnixAddr{Name: filepath.Join(t.TempDir(), "s"), Net: network})
		if err != nil {
			t.Fatal(err)
		}
		l, err := Listen(inner)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close() })
		var uid atomic.Int64
		go func() {
			_, _ = l.AcceptKept(func(u, _ int) bool { uid.Store(int64(u)); return false }, []byte("no"))
		}()
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		for name, send := range map[string]func(*net.UnixConn){
			"nothing":     func(*net.UnixConn) {},
			"HELLO":       func(c *net.UnixConn) { _, _ = c.Write([]byte("hello")) },
			"many":        func(c *net.UnixConn) { _, _ = c.Write([]byte(strings.Repeat("x", 8000))); _, _ = c.Write(nil) },
			"descriptors": func(c *net.UnixConn) { _, _, _ = c.WriteMsgUnix([]byte("x"), unix.UnixRights(int(w.Fd())), nil) },
		} {
			c, err := net.DialUnix(network, nil, &net.UnixAddr{Name: inner.Addr().String(), Net: network})
			if err != nil {
				t.Fatal(err)
			}
			send(c)
			_ = c.SetReadDeadline(time.Now().Add(10 * time.Second))
			b := make([]byte, 10)
			if n, err := c.Read(b); err != nil || string(b[:n]) != "no" {
				t.Errorf("%s %s: %q, %v", network, name, b[:n], err)
			}
			// A close with unread data resets a stream.
			if n, err := c.Read(b); !errors.Is(err, io.EOF) && !errors.Is(err, unix.ECONNRESET) && n > 0 {
				t.Errorf("%s %s: %d bytes more, %v", network, name, n, err)
			}
			_ = c.Close()
		}
		if uid.Load() != int64(os.Getuid()) {
			t.Errorf("the peer is uid %d", uid.Load())
		}
		_ = w.Close()
		_ = r.SetReadDeadline(time.Now().Add(10 * time.Second))
		if _, err := r.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
			t.Errorf("%s: the descriptor stays open: %v", network, err)
		}
	}
}
