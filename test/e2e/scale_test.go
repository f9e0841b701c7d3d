// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"xsched/internal/control"
	"xsched/internal/policy"
)

// rss is the resident memory of a process, shared pages included.
func rss(t testing.TB, pid int) int64 {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(`VmRSS:\s+(\d+) kB`).FindSubmatch(text)
	if m == nil {
		t.Fatalf("no VmRSS in\n%s", text)
	}
	kb, _ := strconv.ParseInt(string(m[1]), 10, 64)
	return kb << 10
}

// inside counts the durations within a bound, and all durations, between two snapshots of a histogram.
func inside(t testing.TB, before, after control.Histogram, boundUS float64) (in, all uint64) {
	t.Helper()
	for i, b := range control.HistogramBoundsUS() {
		if b == boundUS {
			in = after.Cumulative[i]
			if before.Cumulative != nil {
				in -= before.Cumulative[i]
			}
			return in, after.Count - before.Count
		}
	}
	t.Fatalf("no bound of %g us", boundUS)
	return 0, 0
}

// crowd is 1,000 programs with 10 queues each on one device, played by one process.
type crowd struct {
	*program
	w    *world
	seen uint64 // changes that the crowd has made and the daemon has seen
}

const crowdSessions, crowdQueues = 1000, 10

func newCrowd(t testing.TB) *crowd {
	t.Helper()
	var files unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &files); err != nil || files.Max < 4*crowdSessions {
		t.Skipf("the limit of open files is %d (%v); the daemon needs 3 for each program", files.Max, err)
	}
	binary := filepath.Join(t.TempDir(), "crowd")
	if text, err := exec.Command("gcc", "-std=c11", "-D_GNU_SOURCE", "-O2", "-Wall", "-Wextra", "-Werror",
		"-I"+filepath.Join(root, "shim", "include"), "-o", binary, "testdata/crowd.c").CombinedOutput(); err != nil {
		t.Fatalf("build crowd: %v\n%s", err, text)
	}
	w := newWorld(t)
	c := &crowd{w.exec(binary, w.path("xsched.sock"), strconv.Itoa(crowdSessions), strconv.Itoa(crowdQueues)), w, 0}
	c.expect("R", soon)
	eventually(t, soon, "all queues are known", func() bool {
		st, err := w.client.Stats(t.Context())
		return err == nil && st.Sessions == crowdSessions && st.Queues == crowdSessions*crowdQueues
	})
	c.seen = w.transitions()
	return c
}

// round is the work of the crowd and the daemon in a period.
type round struct {
	changes, rises uint64        // changes of a queue; those from idle to busy
	took           time.Duration // to make the changes
	before, after  *control.Stats
}

// run changes queues between idle and busy for a period, one doorbell for each change, and waits until the
// daemon has seen every change.
func (c *crowd) run(length time.Duration, perSecond int) (r round) {
	t := c.w.t
	t.Helper()
	stats := func() *control.Stats {
		st, err := c.w.client.Stats(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return &st
	}
	r.before = stats()
	c.send(fmt.Sprintf("run %d %d", length.Milliseconds(), perSecond))
	var ns int64
	if _, err := fmt.Sscanf(c.expect("D ", soon), "D %d %d %d", &r.changes, &r.rises, &ns); err != nil {
		t.Fatal(err)
	}
	r.took, r.after = time.Duration(ns), stats()
	c.seen += r.changes
	eventually(t, soon, "the daemon has seen every change", func() bool { return c.w.transitions() == c.seen })
	return r
}

// TestLongTenThousandQueues: under every policy the daemon sees each change of 10,000 queues, decides, and
// stays within 200 MB. BenchmarkTenThousandQueues measures how fast.
func TestLongTenThousandQueues(t *testing.T) {
	const memory = 200 << 20
	c := newCrowd(t)
	for _, name := range policy.Names() {
		c.w.must("policy", name)
		r := c.run(100*time.Millisecond, 20_000)
		if decisions := r.after.Decision.Count - r.before.Decision.Count; r.changes == 0 || decisions == 0 {
			t.Errorf("%s: %d decisions for %d changes", name, decisions, r.changes)
		}
	}
	if size := rss(t, c.w.serve.Process.Pid); size > memory {
		t.Errorf("the daemon has %d MB, want %d at most", size>>20, memory>>20)
	}
	if err := c.wait(10 * time.Second); err != nil {
		t.Errorf("crowd: %v; stderr: %s", err, c.stderr())
	}
}

// BenchmarkTenThousandQueues measures each policy while the crowd attempts 110,000 changes per second: how many
// the daemon handles, how many of them one by one instead of with the queue's next change, and how many
// decisions are in time, that is, take at most a millisecond. It fails unless 99 % of the decisions are in time
// in the best of a few rounds. For each delay that the machine shows meanwhile, one slow decision is excused, up
// to a tenth of all. On a machine with other load the costliest policies (PUP, SPUP, UP) fail nevertheless.
func BenchmarkTenThousandQueues(b *testing.B) {
	const rounds, least = 5, 0.99
	c := newCrowd(b)
	for _, name := range policy.Names() {
		b.Run(name, func(b *testing.B) {
			c.w.must("policy", name)
			var changes, rises, alone uint64
			var took time.Duration
			worst := 1.0 // of the iterations
			for b.Loop() {
				quick := 0.0
				for i := 0; i < rounds && quick < least; i++ {
					start := nowNS()
					r := c.run(300*time.Millisecond, 110_000)
					within, all := inside(b, r.before.Decision, r.after.Decision, 1000)
					_, told := inside(b, r.before.BusyToDecision, r.after.BusyToDecision, 1000)
					changes, rises, took, alone = changes+r.changes, rises+r.rises, took+r.took, alone+told
					slow := all - within
					slow -= min(slow, machine().count(start, nowNS()), all/10)
					quick = max(quick, 1-float64(slow)/float64(max(1, all)))
					b.Logf("%d of %d decisions within 1 ms, %d of the others not excused by delays", within, all, slow)
				}
				worst = min(worst, quick)
			}
			b.ReportMetric(float64(changes)/took.Seconds(), "changes/s")
			b.ReportMetric(100*float64(alone)/float64(max(1, rises)), "%alone")
			b.ReportMetric(100*worst, "%in-time")
			b.ReportMetric(float64(rss(b, c.w.serve.Process.Pid)>>20), "MB")
			if worst < least {
				b.Fatalf("%.2f %% of the decisions in time (1 ms), want %.0f %%", 100*worst, 100*least)
			}
		})
	}
}

// transitions is the number of changes of all queues that the daemon has seen.
func (w *world) transitions() (sum uint64) {
	w.t.Helper()
	list, err := w.client.List(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	for i := range list.Processes {
		for _, q := range list.Processes[i].Queues {
			sum += q.Transitions
		}
	}
	return sum
}
