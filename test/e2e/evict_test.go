// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"xsched/internal/control"
)

// TestEvictByHand: an operator moves a program's memory out and back. The program's calls wait meanwhile, it can
// be suspended before, and the daemon's end brings the memory back.
func TestEvictByHand(t *testing.T) {
	w := newWorld(t, "--host-memory", "2GiB")
	p := w.run(options{args: []string{"--movable"}}, compile(t, "gcc", "memory.c", "-std=c11"))
	p.expect("R", soon)
	says(p, "alloc 0 300", "A 0")
	says(p, "alloc 0 1", "A 0") // stays with the driver
	pid := fmt.Sprint(p.pid())
	memory := func() control.Memory {
		if l := w.process(p.pid()); l != nil && len(l.Memory) == 1 {
			return l.Memory[0]
		}
		return control.Memory{}
	}
	eventually(t, soon, "300 MiB are movable", func() bool { return memory().MovableBytes == 300<<20 })
	if text := w.must("list"); !strings.Contains(text, "301MiB, movable 300MiB (rest: 1MiB small)") {
		t.Errorf("list:\n%s", text)
	}
	w.must("suspend", pid)
	var reply struct {
		Moved int64 `json:"moved_bytes"`
	}
	if err := json.Unmarshal([]byte(w.must("evict", pid, "--json")), &reply); err != nil || reply.Moved != 300<<20 {
		t.Errorf("moved %d, %v", reply.Moved, err)
	}
	if m := memory(); m.AwayBytes != 300<<20 || !m.Evicted || m.MovesOut != 1 {
		t.Errorf("%+v", m)
	}
	w.must("resume", pid)
	p.send("launch 0")
	eventually(t, soon, "its call waits", func() bool { return memory().Waits })
	if text := w.must("restore", pid); !strings.Contains(text, "300MiB of process "+pid+" returned to the GPU") {
		t.Errorf("restore: %s", text)
	}
	if got := p.expect("L", soon); got != "L 0" {
		t.Errorf("launch: %q", got)
	}
	w.must("evict", pid, "--bytes", "100MiB")
	if m := memory(); m.AwayBytes < 100<<20 {
		t.Errorf("%+v", m)
	}
	w.killDaemon()
	says(p, "launch 0", "L 0") // without a daemon it returns by itself
	w.startDaemon("--host-memory", "2GiB")
	eventually(t, soon, "it is out again", func() bool { return memory().AwayBytes >= 100<<20 })
	w.must("restore", pid)
	says(p, "launch 0", "L 0")
}
