// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"os"
	"strings"
	"testing"
	"time"
)

// TestDeletedRuntimeFolder: somebody deletes the runtime folder of a running daemon, and a second daemon
// starts. The first one notices that its lock is gone and ends with an error. It removes nothing of the
// second one, which its program joins.
func TestDeletedRuntimeFolder(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	program := w.tenant(options{priority: 1}, 10)
	first := w.serve
	gone := w.dir + ".gone"
	t.Cleanup(func() { _ = os.RemoveAll(gone) })
	if err := os.Rename(w.dir, gone); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(w.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(gone+"/vgpu.sock", w.path("vgpu.sock")); err != nil { // another program's
		t.Fatal(err)
	}
	w.client.Close()
	began := time.Now()
	w.startDaemon()
	ended := make(chan error, 1)
	go func() { ended <- first.Wait() }()
	select {
	case err := <-ended:
		if err == nil {
			t.Error("the first daemon reports no failure")
		}
		t.Logf("the first daemon ended %v after the start of the second: %v", time.Since(began).Round(time.Millisecond), err)
	case <-time.After(soon):
		t.Fatal("two daemons run")
	}
	text, err := os.ReadFile(gone + "/serve.log")
	if err != nil || !strings.Contains(string(text), "was deleted or replaced") {
		t.Errorf("the log does not say why: %v\n%s", err, text)
	}
	eventually(t, soon, "the program joins the second daemon", func() bool { return w.process(program.pid()) != nil })
	if out := w.must("health"); out != "ok\n" {
		t.Errorf("health of the second daemon: %q", out)
	}
	if _, err := os.Stat(w.path("lock")); err != nil {
		t.Errorf("the second daemon has lost its lock: %v", err)
	}
}
