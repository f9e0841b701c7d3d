// SPDX-License-Identifier: Apache-2.0

package daemon_test

import (
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"xsched/internal/daemon"
)

// A self-test that does not end delays neither the resumption of programs nor, without limit, the
// end of the daemon.
func TestStuckSelfTestDoesNotBlockClose(t *testing.T) {
	w := newWorld(t)
	dir := filepath.Join(w.dir, "sys/module/nvidia")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "version"), []byte("550.54.14"), 0o644); err != nil {
		t.Fatal(err)
	}
	entered, release := make(chan struct{}), make(chan struct{})
	defer close(release)
	stop := w.serve(t, func(o *daemon.Options) {
		o.SelfTest = func() (string, []string, error) {
			close(entered)
			<-release
			return "", nil, os.ErrNotExist
		}
	})
	startProgram(t, "app", w.vgpuPath(), w.sockPath())
	await(t, "a session", func() bool { l, err := w.ctl.List(ctx); return err == nil && len(l.Processes) == 1 })
	<-entered
	done := make(chan error, 1)
	go func() { done <- stop() }()
	// The sessions close before the daemon waits for the test.
	await(t, "a closed client socket", func() bool {
		c, err := net.Dial("unixpacket", w.sockPath())
		if err == nil {
			_ = c.Close()
		}
		return err != nil
	})
	select {
	case <-done:
		t.Error("the sessions were closed after the wait")
	default:
	}
	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("Close waits for the test")
	}
}
