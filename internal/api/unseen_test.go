// SPDX-License-Identifier: Apache-2.0

package api

import (
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"xsched/internal/control"
	"xsched/internal/control/client"
)

// insideVariable makes a copy of the test binary serve the control socket of this name.
const insideVariable = "XSCHED_TEST_INSIDE"

// TestClientOutside: a client in a PID namespace that the daemon can't see is refused with the reason. It got
// the end of the connection, as if no daemon ran.
func TestClientOutside(t *testing.T) {
	if socket := os.Getenv(insideVariable); socket != "" {
		l, err := net.Listen("unix", socket)
		if err != nil {
			t.Fatal(err)
		}
		_ = Serve(t.Context(), l, &fake{callers: make(chan control.Caller, 1)}, Options{Log: slog.New(slog.DiscardHandler)})
		return
	}
	if os.Getuid() != 0 {
		t.Skip("needs root for a PID namespace")
	}
	socket := filepath.Join(t.TempDir(), "c.sock")
	inside := exec.Command(os.Args[0], "-test.run=^TestClientOutside$")
	inside.Env = append(os.Environ(), insideVariable+"="+socket)
	inside.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID, Pdeathsig: syscall.SIGKILL}
	if err := inside.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = inside.Process.Kill()
		_ = inside.Wait()
	}()
	c := client.New(socket)
	defer c.Close()
	var err error
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if _, err = os.Stat(socket); err == nil {
			if _, err = c.List(t.Context()); err != nil && !strings.Contains(err.Error(), "no daemon") {
				break
			}
		}
	}
	if err == nil || !strings.Contains(err.Error(), "PID namespace") || !strings.Contains(err.Error(), "nsenter --pid") {
		t.Errorf("a client outside of the daemon's namespace: %v", err)
	}
}
