// SPDX-License-Identifier: Apache-2.0

package client

import (
	"errors"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"xsched/internal/control"
)

// listenAs listens as another user, on a thread that ends with the goroutine.
func listenAs(t *testing.T, socket string, uid int) net.Listener {
	t.Helper()
	var l net.Listener
	var err error
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // without unlock
		if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, uintptr(uid), uintptr(uid), 0); errno != 0 {
			err = errno
			return
		}
		l, err = net.Listen("unix", socket)
	}()
	<-done
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// TestServerOfAnotherUser checks that the client talks to no daemon of another user.
func TestServerOfAnotherUser(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	for uid, want := range map[int]bool{0: true, 4711: false} {
		dir := t.TempDir()
		if err := os.Chmod(filepath.Dir(dir), 0o755); err != nil { //nolint:gosec // the other user creates a socket
			t.Fatal(err)
		}
		if err := os.Chmod(dir, 0o777); err != nil { //nolint:gosec // the other user creates a socket
			t.Fatal(err)
		}
		socket := filepath.Join(dir, "s")
		asked := false
		server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			asked = true
			_, _ = w.Write([]byte(`{"version":"x"}`))
		})}
		l := listenAs(t, socket, uid)
		go func() { _ = server.Serve(l) }()
		_, err := New(socket).Version(t.Context())
		_ = server.Close()
		switch {
		case want && err != nil:
			t.Errorf("uid %d: %v", uid, err)
		case !want && (!errors.Is(err, control.ErrNotAllowed) || !strings.Contains(err.Error(), "uid 4711") || asked):
			t.Errorf("uid %d: %v, asked: %v", uid, err, asked)
		}
	}
}
