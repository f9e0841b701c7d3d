// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"bufio"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"xsched/internal/control"
	"xsched/internal/control/client"
	"xsched/internal/session/sessiontest"
	"xsched/internal/wire"
)

// daemonTime returns the CPU time of a process so far.
func daemonTime(t *testing.T, pid int) time.Duration {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(b), ") ")
	f := strings.Fields(rest)
	user, _ := strconv.Atoi(f[11])
	system, _ := strconv.Atoi(f[12])
	return time.Duration(user+system) * 10 * time.Millisecond // of USER_HZ, 100
}

// TestLongViewers measures what viewers cost the daemon beside 500 tenants with 1,000 changes a second:
// the difference of its CPU time with and without them. Four viewers are dashboards over TCP, the
// others command-line clients on the socket. The daemon limits them by its own clock, so the bound
// here is wide; XSCHED_BUDGET=1 asks for the promised 10 % of a core, on a quiet machine.
func TestLongViewers(t *testing.T) {
	const tenants, changes, measured = 500, 1000, 10 * time.Second
	d := newDaemon(t)
	var all []*sessiontest.Client
	for range tenants {
		c, err := sessiontest.Dial(filepath.Join(d.dir, control.ClientDir, control.ClientSocket), wire.Hello{PID: uint32(os.Getpid())})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(c.Close)
		c.Queue(0)
		all = append(all, c)
	}
	stop := make(chan struct{})
	t.Cleanup(func() { close(stop) })
	var made atomic.Int64
	go func() {
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		start := time.Now()
		for n := 0; ; {
			select {
			case <-stop:
				return
			case <-tick.C:
			}
			for ; n < int(time.Since(start).Seconds()*changes); n++ {
				all[n%tenants].Busy(0, n/tenants%2 == 0)
				made.Add(1)
			}
		}
	}()
	measure := func() (share float64) {
		t.Helper()
		before, began, changed := daemonTime(t, d.cmd.Process.Pid), time.Now(), made.Load()
		time.Sleep(measured)
		elapsed := time.Since(began)
		if n := float64(made.Load()-changed) / elapsed.Seconds(); n < changes*0.8 {
			t.Logf("only %.0f changes a second", n)
		}
		return 100 * float64(daemonTime(t, d.cmd.Process.Pid)-before) / float64(elapsed)
	}
	time.Sleep(2 * time.Second) // the joins are done
	alone := measure()

	const query = "/events?every_ms=1000&with=snapshot,devices,journal,history"
	var events, bytes atomic.Int64
	for i := range 8 {
		hc, url := http.DefaultClient, "http://"+d.http+control.Prefix+query
		if i >= 4 {
			hc, url = &http.Client{Transport: client.Transport(d.client.Socket())}, "http://xsched"+control.Prefix+query
		}
		answer, err := hc.Get(url)
		if err != nil || answer.StatusCode != http.StatusOK {
			t.Fatalf("%v, %v", answer, err)
		}
		t.Cleanup(func() { _ = answer.Body.Close() })
		go func() {
			lines := bufio.NewScanner(answer.Body)
			lines.Buffer(nil, 64<<20)
			for lines.Scan() {
				if bytes.Add(int64(len(lines.Bytes()))); strings.HasPrefix(lines.Text(), "event: snapshot") {
					events.Add(1)
				}
			}
		}()
	}
	eventually(t, "every viewer has a snapshot", func() bool { return events.Load() >= 8 })
	seen, sent := events.Load(), bytes.Load()
	watched := measure()
	t.Logf("daemon: %.1f %% of a core alone, %.1f %% with 8 viewers: %+.1f; %.1f snapshots and %.2f MB a second for all viewers",
		alone, watched, watched-alone, float64(events.Load()-seen)/measured.Seconds(), float64(bytes.Load()-sent)/1e6/measured.Seconds())
	if events.Load() == seen {
		t.Error("no snapshot arrived while it was measured")
	}
	most := 25.0
	if os.Getenv("XSCHED_BUDGET") != "" {
		most = 10
	}
	if watched-alone > most {
		t.Errorf("the viewers cost %.1f %% of a core, more than %.0f", watched-alone, most)
	}
}
