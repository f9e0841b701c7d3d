// SPDX-License-Identifier: Apache-2.0

package vnvidia

import (
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	vdevice "xsched/internal/virtual/device"
)

// test_memory.c tests capacity, accounts and mapped memory, and prints a line per test.
func TestMemory(t *testing.T) {
	t.Setenv("VGPU_TEST_MEMORY", "67108864")
	d := startDevice(t, 2)
	cmd := exec.Command("timeout", "-s", "KILL", "60", d.build("test_memory"))
	cmd.Env = d.environment()
	out, err := cmd.CombinedOutput()
	if err != nil || strings.Contains(string(out), "FAIL") || strings.Count(string(out), "ok ") != 6 {
		t.Errorf("wrong result: %v\n%s", err, out)
	}
	d.statsWhen("everything to be freed", func(s *vdevice.Stats) bool { return s.Objects == 0 && len(s.Memory) == 0 })
}

// Two processes share one GPU's memory, and the death of one gives its memory to the other.
func TestMemoryOfProcesses(t *testing.T) {
	t.Setenv("VGPU_TEST_MEMORY", "67108864")
	d := startDevice(t, 2)
	binary := d.build("test_memory")
	hold := func(mib string) *program { return d.program(exec.Command(binary, "hold", mib), nil) }
	says := func(p *program, want string) {
		t.Helper()
		if got := strings.Join(p.expect("held"), " "); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	first := hold("40")
	says(first, "held 0 0")
	second := hold("24")
	says(second, "held 0 2") // nothing is left for the page that is created
	s := d.statsWhen("both to be known", func(s *vdevice.Stats) bool { return len(s.Memory) == 2 })
	if a, b := s.MemoryOf(first.pid(), 0), s.MemoryOf(second.pid(), 0); a != 40<<20 || b != 24<<20 {
		t.Errorf("accounts %d and %d", a, b)
	}
	if n := s.MemoryOf(first.pid(), 1); n != 0 {
		t.Errorf("%d bytes on the other GPU", n)
	}
	second.say("again")
	says(second, "held 2 2")
	_ = first.cmd.Process.Kill()
	d.statsWhen("the memory of the dead to be free", func(s *vdevice.Stats) bool { return s.MemoryOf(first.pid(), 0) == 0 })
	second.say("again")
	says(second, "held 0 0")
}

func TestMemoryFaults(t *testing.T) {
	t.Setenv("VGPU_TEST_MEMORY", "67108864")
	d := startDevice(t, 1)
	p := d.program(exec.Command(d.build("test_memory"), "hold", "2"), nil)
	step := func(fault, want string) {
		t.Helper()
		if err := d.ClearFaults(); err != nil {
			t.Fatal(err)
		}
		if fault != "" {
			if err := d.SetFault(fault); err != nil {
				t.Fatal(err)
			}
		}
		p.say("again")
		if got := strings.Join(p.expect("held"), " "); got != want {
			t.Errorf("with %q: %q, want %q", fault, got, want)
		}
	}
	p.expect("held")
	step("no-memory:0", "held 2 2")
	step("map-fails:"+strconv.Itoa(p.pid()), "held 0 999")
	step("", "held 0 0")
	step("step:create:0:1", "held 2 0")                        // the allocation, not the page
	step(fmt.Sprintf("step:create:%d:2", p.pid()), "held 0 2") // the second time
	step("step:create:0:1+", "held 2 2")
	step(fmt.Sprintf("step:map:%d:1", p.pid()+1), "held 0 0") // another process
	step("step:map:0:1", "held 0 999")
	step("step:copy:0:1", "held 1 0")
	begun := time.Now()
	step("step:map:0:1:300", "held 0 0")
	if took := time.Since(begun); took < 300*time.Millisecond {
		t.Errorf("a slow step took %v", took)
	}
	for _, bad := range []string{"no-memory:x", "no-memory:99", "map-fails", "slow-copies:0", "step:map:0", "step:map:0:0", "step:other:0:1", "step:map:0:1:0"} {
		if d.SetFault(bad) == nil {
			t.Errorf("%s is accepted", bad)
		}
	}
}

// The device counts accesses to memory that is not mapped, and memory that is unmapped below submitted work.
func TestMemoryStray(t *testing.T) {
	t.Setenv("VGPU_TEST_MEMORY", "67108864")
	d := startDevice(t, 1)
	p := d.program(exec.Command(d.build("test_memory"), "stray"), nil)
	if got := strings.Join(p.expect("held"), " "); got != "held 0 0" {
		t.Error(got)
	}
	s := d.statsWhen("the program to be known", func(s *vdevice.Stats) bool { return len(s.Clients) > 0 })
	if a, ok := s.Client(p.pid()); !ok || a.Missed != 2 || a.Torn != 1 || a.Faults == 0 {
		t.Errorf("%+v", a)
	}
}

// A device with more memory than its addresses can hold is refused.
func TestMemoryLimit(t *testing.T) {
	err := Serve(t.Context(), Options{Socket: t.TempDir() + "/s", Memory: MaxMemory + 1})
	if err == nil || !strings.Contains(err.Error(), "24GiB") {
		t.Error(err)
	}
}
