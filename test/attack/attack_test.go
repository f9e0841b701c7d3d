// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"xsched/internal/virtual"
)

// TestMain lets the tests run this program's other commands.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && (os.Args[1] == "sandbox" || os.Args[1] == "probe-families") {
		if os.Args[1] == "probe-families" {
			for _, family := range []int{unix.AF_UNIX, unix.AF_INET, unix.AF_NETLINK} {
				if fd, err := unix.Socket(family, unix.SOCK_DGRAM, 0); err == nil {
					_, _ = os.Stdout.WriteString("+")
					_ = unix.Close(fd)
				} else {
					_, _ = os.Stdout.WriteString("-")
				}
			}
			os.Exit(0)
		}
		_ = sandbox(os.Args[2:])
		os.Exit(3)
	}
	os.Exit(m.Run())
}

// TestUnit: the bench knows every restriction of the shipped unit that it applies, and the address
// families are in force.
func TestUnit(t *testing.T) {
	u, err := readUnit("../../deploy/systemd/xsched.service")
	if err != nil {
		t.Fatal(err)
	}
	if len(u.families) < 3 || u.files == 0 || u.memory != 1<<30 {
		t.Errorf("read %+v", u)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for families, want := range map[string]string{"1,2": "++-", "1,2,16": "+++", "1": "+--"} {
		text, err := exec.Command(self, "sandbox", "families="+families, "--", self, "probe-families").CombinedOutput()
		if err != nil || string(text) != want {
			t.Errorf("families %s: %q, %v; want %q", families, text, err, want)
		}
	}
}

// TestDivide: each CPU belongs to one part; too few are not divided.
func TestDivide(t *testing.T) {
	var all []int
	for cpu := range 16 {
		all = append(all, cpu)
	}
	c := divide(all)
	seen := map[string]bool{}
	for _, list := range []string{c.bench, c.device, c.victims, c.daemon, c.attackers} {
		for cpu := range strings.SplitSeq(list, "+") {
			if seen[cpu] || cpu == "" {
				t.Errorf("CPU %q twice in %+v", cpu, c)
			}
			seen[cpu] = true
		}
	}
	if len(seen) != 16 || strings.Count(c.victims, "+") != 4 {
		t.Errorf("%+v", c)
	}
	if c := divide(all[:8]); c != (cores{}) {
		t.Errorf("of 8 CPUs: %+v", c)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	text, err := unitLimits{cores: "0"}.wrap(self, 0, "/bin/grep", "Cpus_allowed_list", "/proc/self/status").CombinedOutput()
	if err != nil || !strings.HasSuffix(strings.TrimSpace(string(text)), ":\t0") {
		t.Errorf("pinned to CPU 0: %q, %v", text, err)
	}
}

// TestRatio: a difference outside the noise has an interval without 1, one inside has not.
func TestRatio(t *testing.T) {
	blocks := func(value float64) (s samples) {
		for i := range 18 {
			s = append(s, []float64{value + float64(i%3), value, value + 1})
		}
		return s
	}
	if r := ratio(blocks(200), blocks(100), p99); r.Low < 1.8 || r.High > 2.1 {
		t.Errorf("twice as long: %+v", r)
	}
	if r := ratio(blocks(100), blocks(100), rate); r.Low > 1 || r.High < 1 {
		t.Errorf("equal: %+v", r)
	}
	if r := ratio(blocks(100), samples{{0}, {0}}, rate); r.Value != worst {
		t.Errorf("no progress: %+v", r)
	}
}

// TestVerdict: one ratio alone, and a difference that the control has too, break no bound.
func TestVerdict(t *testing.T) {
	bad, good := Ratio{2, 1.8, 2.2}, Ratio{1.02, 0.95, 1.2}
	for name, c := range map[string]struct {
		row    Row
		broken bool
	}{
		"worse than both":    {Row{P99: bad, P99Control: bad}, true},
		"the control, too":   {Row{P99: bad, P99Control: good}, false},
		"job":                {Row{Job: bad, JobControl: bad}, true},
		"held ran":           {Row{HeldIterations: 1}, true},
		"slow end":           {Row{TermMS: 2001}, true},
		"slow probe":         {Row{ProbesMS: map[string]float64{"list": 1500}}, true},
		"more memory":        {Row{MemoryMB: Triple{Alone: 30, Attacked: 300}}, true},
		"nothing happened":   {Row{}, false},
		"little CPU in full": {Row{DaemonCPU: Triple{Alone: 10, Attacked: 40}}, false},
	} {
		c.row.judge(usualBounds(), attack{})
		if got := len(c.row.Broken) > 0; got != c.broken {
			t.Errorf("%s: broken %v", name, c.row.Broken)
		}
	}
}

// TestTable: a saved report gives a table with one line for each attack.
func TestTable(t *testing.T) {
	path := filepath.Join(t.TempDir(), "attacks.json")
	r := Report{Rows: []Row{
		{Attack: "one", Platform: "nvidia", P99MS: Triple{Alone: 0.5, Attacked: 0.6}, P99: Ratio{1.2, 0.9, 1.5}, ProbesMS: map[string]float64{"list": 70, "join": 9}},
		{Attack: "two", Platform: "amd", Broken: []string{"writes"}},
		{Attack: "three", Platform: "amd", Skipped: "no /dev/fuse"},
	}}
	if err := r.save(path); err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	if err := printTable(&b, path); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(b.String()), "\n")
	if len(lines) != 5 || !strings.Contains(lines[2], "| 0.50 > 0.60 | 1.20 (0.90-1.50) |") || !strings.Contains(lines[2], "| 70 |") ||
		!strings.Contains(lines[3], "BROKEN") || !strings.Contains(lines[4], "skipped: no /dev/fuse") {
		t.Error(b.String())
	}
	for _, line := range lines {
		if strings.Count(line, "|") != strings.Count(lines[0], "|") {
			t.Error("columns of", line)
		}
	}
	if err := printTable(&b, path+"x"); err == nil {
		t.Error("a missing file gave a table")
	}
}

// TestAttacks: every attack has a name of its own, an actor and a place, and the threat model lists it.
func TestAttacks(t *testing.T) {
	text, err := os.ReadFile("../../docs/threat-model.md")
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, a := range attacks() {
		if slices.Contains(names, a.name) || a.id == "" || a.what == "" || !a.runsOn(virtual.Default()) {
			t.Errorf("%+v", a)
		}
		names = append(names, a.name)
		if !strings.Contains(string(text), "`"+a.name+"`") {
			t.Errorf("docs/threat-model.md does not mention the attack %s", a.name)
		}
		if err := act([]string{a.actor() + "-unknown", "", "nvidia", ""}); err == nil {
			t.Error("an unknown act was accepted")
		}
	}
	if _, err := choose("fuse-hello,R3"); err != nil {
		t.Error(err)
	}
	if _, err := choose("nothing"); err == nil {
		t.Error("an unknown attack was accepted")
	}
}

// TestFUSEAnswers: the server answers what opening needs, and never a FLUSH.
func TestFUSEAnswers(t *testing.T) {
	for code, size := range map[uint32]int{fuseInit: 80, fuseGetattr: 120, fuseOpen: 32, 99: 16, fuseFlush: 0} {
		request := make([]byte, fuseHeaderBytes)
		binary.NativeEndian.PutUint32(request[4:], code)
		binary.NativeEndian.PutUint64(request[8:], 7)
		reply := answerFUSE(request)
		if len(reply) != size {
			t.Errorf("request %d: %d bytes, want %d", code, len(reply), size)
		} else if size > 0 && (binary.NativeEndian.Uint64(reply[8:]) != 7 || int(binary.NativeEndian.Uint32(reply)) != size) {
			t.Errorf("request %d: %v", code, reply)
		}
	}
}

// TestUsage: a process that used CPU time shows it.
func TestUsage(t *testing.T) {
	u, err := usageOf(os.Getpid())
	if err != nil || u.rss == 0 || u.files < 3 || u.threads < 1 {
		t.Errorf("%+v, %v", u, err)
	}
	if _, err := usageOf(-1); err == nil {
		t.Error("a process that does not exist has usage")
	}
	if files, _ := filepath.Glob("/proc/self/fd/*"); u.files < len(files)-8 {
		t.Errorf("%d files, /proc has %d", u.files, len(files))
	}
}
