// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"xsched/internal/control"
)

// says sends a line and expects the answer.
func says(p *program, line, want string) {
	p.t.Helper()
	p.send(line)
	if got := p.expect(want[:1], soon); got != want {
		p.t.Errorf("%s: %q, want %q", line, got, want)
	}
}

// waitMemory waits until the daemon shows so much memory of a process on a GPU.
func (w *world) waitMemory(pid int, gpu string, usedMiB, quotaMiB int64) control.Memory {
	w.t.Helper()
	var got control.Memory
	eventually(w.t, soon, fmt.Sprintf("%d MiB of %d on %s", usedMiB, quotaMiB, gpu), func() bool {
		p := w.process(pid)
		for i := 0; p != nil && i < len(p.Memory); i++ {
			if got = p.Memory[i]; got.Device == gpu && got.UsedBytes == usedMiB<<20 && got.QuotaBytes == quotaMiB<<20 {
				return true
			}
		}
		return false
	})
	return got
}

const firstGPU, secondGPU = "0000:01:00.0", "0000:02:00.0"

// Two programs have quotas of their own on each of two GPUs. What exceeds one fails as on a full device, and
// the driver's answers about memory come from it. It can be changed at run time, and outlives the daemon.
func TestMemoryQuota(t *testing.T) {
	w := newWorld(t)
	binary := compile(t, "gcc", "memory.c", "-std=c11")
	small := w.run(options{args: []string{"--memory", "64MiB"}}, binary)
	large := w.run(options{args: []string{"--memory", "1GiB"}}, binary)
	small.expect("R", soon)
	large.expect("R", soon)
	says(small, "info 0", "M 64 64")
	says(small, "alloc 0 40", "A 0")
	says(small, "alloc 0 25", "A 2")
	says(small, "alloc 1 60", "A 0") // the other GPU has an account of its own
	says(small, "alloc 0 24", "A 0")
	says(small, "alloc 0 1", "A 2")
	says(small, "free 0", "F 0")
	says(small, "info 0", "M 24 64")
	says(large, "alloc 0 900", "A 0")
	says(large, "alloc 0 200", "A 2")
	says(small, "launch 0", "L 0")
	says(large, "launch 0", "L 0")

	if m := w.waitMemory(small.pid(), firstGPU, 40, 64); m.Refused != 2 {
		t.Errorf("%+v", m)
	}
	w.waitMemory(small.pid(), secondGPU, 60, 64)
	w.waitMemory(large.pid(), firstGPU, 900, 1024)
	if text := w.must("list"); !strings.Contains(text, fmt.Sprintf("memory: %d on %s: 40MiB of 64MiB, 2 allocations refused\n", small.pid(), firstGPU)) {
		t.Errorf("list:\n%s", text)
	}

	w.must("hint", fmt.Sprint(small.pid()), "--memory", "100MiB")
	w.waitMemory(small.pid(), firstGPU, 40, 100)
	says(small, "alloc 0 60", "A 0")
	says(small, "alloc 0 1", "A 2")

	w.killDaemon()
	says(small, "alloc 0 1", "A 2") // whether the library has noticed or not
	says(small, "free 0", "F 0")
	says(small, "alloc 0 60", "A 0")
	says(small, "alloc 0 1", "A 2")
	w.startDaemon()
	w.waitMemory(small.pid(), firstGPU, 100, 100)
}

// The same for HIP: two programs, two GPUs, and the runtime's last error.
func TestMemoryQuotaHIP(t *testing.T) {
	w := hipWorld(t)
	binary := filepath.Join(t.TempDir(), "program")
	compileC(t, binary, "gcc", "-DHIP", "testdata/memory.c", product(t, "virtual/libamdhip64.so.6"))
	start := func(quota string) *program {
		p := w.run(options{args: []string{"--memory", quota}}, binary)
		p.expect("R", soon)
		return p
	}
	small, large := start("64MiB"), start("1GiB")
	says(small, "alloc 0 65", "A 2") // the first call of the process
	says(small, "error 0", "E 2 2 0")
	says(small, "alloc 0 40", "A 0")
	says(small, "alloc 0 25", "A 2")
	says(small, "alloc 1 60", "A 0")
	says(small, "error 1", "E 2 2 0")
	says(small, "info 0", "M 24 64")
	says(large, "alloc 0 900", "A 0")
	says(large, "alloc 0 200", "A 2")
	says(small, "free 0", "F 0")
	says(small, "alloc 0 64", "A 0")
	says(small, "launch 0", "L 0")
	says(large, "launch 0", "L 0")
	gpus, err := w.client.Devices(t.Context())
	if err != nil || len(gpus.Devices) != 2 {
		t.Fatalf("%+v, %v", gpus, err)
	}
	w.waitMemory(small.pid(), gpus.Devices[0].ID, 64, 64)
	w.waitMemory(small.pid(), gpus.Devices[1].ID, 60, 64)
	w.waitMemory(large.pid(), gpus.Devices[0].ID, 900, 1024)
	w.killDaemon()
	says(small, "alloc 0 1", "A 2")
}

// A rule of the administrator is the most that a program can give itself.
func TestMemoryRule(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(path, []byte("rules: [{name: r, match: {command: program}, hints: {memory: 32MiB}}]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	w := newWorld(t, "--config", path)
	binary := compile(t, "gcc", "memory.c", "-std=c11")
	p := w.run(options{args: []string{"--memory", "1GiB"}}, binary)
	p.expect("R", soon)
	says(p, "alloc 0 20", "A 0")
	w.waitMemory(p.pid(), firstGPU, 20, 32)
	says(p, "alloc 0 20", "A 2")
	says(p, "alloc 0 12", "A 0")
	says(p, "info 0", "M 0 32")
}
