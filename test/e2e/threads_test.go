// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// stopThread stops the thread of a program that has a name, until the returned function is called. A signal
// would stop all its threads, so a debugger's request stops the one.
func stopThread(t *testing.T, pid int, name string) (resume func()) {
	t.Helper()
	tid := 0
	eventually(t, soon, "the program has a thread "+name, func() bool {
		files, _ := filepath.Glob("/proc/" + strconv.Itoa(pid) + "/task/*/comm")
		for _, file := range files {
			if text, err := os.ReadFile(file); err == nil && strings.TrimSpace(string(text)) == name {
				tid, _ = strconv.Atoi(filepath.Base(filepath.Dir(file)))
			}
		}
		return tid != 0
	})
	stopped, end, ended := make(chan error, 1), make(chan struct{}), make(chan struct{})
	go func() { // only the thread that attached may make requests
		runtime.LockOSThread()
		defer runtime.UnlockOSThread() // the end of a thread would kill the programs that it started
		defer close(ended)
		err := unix.PtraceSeize(tid)
		if err == nil {
			err = unix.PtraceInterrupt(tid)
		}
		if err == nil {
			_, err = unix.Wait4(tid, nil, unix.WALL, nil)
		}
		stopped <- err
		<-end
		_ = unix.PtraceDetach(tid)
	}()
	if err := <-stopped; err != nil {
		close(end)
		t.Fatalf("stop thread %s: %v", name, err)
	}
	return func() { close(end); <-ended }
}

// TestLongDeadThreadsOfPrograms: a program whose watcher or helper thread is dead while it has work is
// named by status and list, with the remedy. Its neighbor is not, and neither is the program afterwards.
func TestLongDeadThreadsOfPrograms(t *testing.T) {
	for thread, text := range map[string]string{"xsched-watch": "the watcher thread in it hangs", "xsched": "the helper thread in it hangs"} {
		t.Run(thread, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			program, neighbor := w.low(options{}), w.tenant(options{}, 1000, "--device", "1")
			eventually(t, soon, "both programs work", func() bool {
				return w.process(program.pid()) != nil && w.process(neighbor.pid()) != nil
			})
			resume := stopThread(t, program.pid(), thread)
			said := func() string { out, _ := w.xsched("status"); return out }
			began := time.Now()
			eventually(t, 30*time.Second, "status names the thread", func() bool {
				return strings.Contains(said(), strconv.Itoa(program.pid())+": "+text)
			})
			t.Logf("named after %v", time.Since(began).Round(time.Millisecond))
			out := said()
			if !strings.Contains(out, "; restart the program") || strings.Contains(out, strconv.Itoa(neighbor.pid())+": ") {
				t.Errorf("status:\n%s", out)
			}
			if list := w.must("list"); !strings.Contains(list, text) {
				t.Errorf("list:\n%s", list)
			}
			resume()
			eventually(t, soon, "nothing is wrong any more", func() bool { return !strings.Contains(said(), text) })
		})
	}
}
