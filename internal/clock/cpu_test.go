// SPDX-License-Identifier: Apache-2.0

package clock

import (
	"os"
	"testing"
	"time"
)

// CPUTime resolves less than a tick, for all threads and for other processes.
func TestCPUTime(t *testing.T) {
	before, err := CPUTime(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		for end := time.Now().Add(time.Millisecond); time.Now().Before(end); {
		}
		close(done)
	}()
	<-done
	after, err := CPUTime(os.Getpid())
	if used := after - before; err != nil || used < 100*time.Microsecond || used%(10*time.Millisecond) == 0 {
		t.Errorf("used %v, %v", used, err)
	}
	if parent, err := CPUTime(os.Getppid()); err != nil || parent <= 0 {
		t.Errorf("parent used %v, %v", parent, err)
	}
	if _, err := CPUTime(1 << 22); err == nil {
		t.Error("a missing process has CPU time")
	}
}
