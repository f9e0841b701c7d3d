// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"log/slog"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"xsched/internal/control"
	"xsched/internal/ledger"
)

func (w *world) report(by string) control.Report {
	w.t.Helper()
	r, err := w.client.Report(w.t.Context(), control.ReportRequest{By: by})
	if err != nil {
		w.t.Fatal(err)
	}
	return r
}

// TestReport: programs of two users on two GPUs have at least the GPU time that the device counted, and at most
// that for which they had work, through a restart and after SIGKILL. A program that has ended keeps its row, and a
// user does not see those of others.
func TestReport(t *testing.T) {
	t.Parallel()
	cache := asNobody(t)
	bin, tenant := copyFor(t, cache, xschedPath(t)), copyFor(t, cache, product(t, "virtual/tenant"))
	w := newWorld(t)
	openTo(t, w)
	began := time.Now()
	mine := w.tenant(options{}, 2000)
	command := func(args ...string) *program {
		cmd := execAs(bin, args...)
		cmd.Env = w.env("XSCHED_CACHE="+cache, "HOME="+cache)
		return w.drive(cmd)
	}
	other := command("run", "--virtual", "--", tenant, "--name", "b", "--kernel-us", "2000", "--device", "1")
	other.expect("R", soon)
	both := []*program{mine, other}
	rows := func(r control.Report) map[string]int64 {
		out := map[string]int64{}
		for _, row := range r.Rows {
			out[row.User] = row.GPUNS
		}
		return out
	}
	run := func() {
		t.Helper()
		before := rows(w.report(""))
		for _, p := range both {
			w.waitLevel(p.pid(), 3)
			p.send("loop")
		}
		eventually(t, soon, "both have run for half a second more", func() bool {
			now := rows(w.report(""))
			return now["root"] > before["root"]+5e8 && now["nobody"] > before["nobody"]+5e8
		})
		for _, p := range both {
			p.send("pause")
			p.expect("P", soon)
		}
	}
	run()
	restarted := time.Now()
	w.stopDaemon(syscall.SIGTERM)
	w.startDaemon()
	openTo(t, w)
	idle := time.Since(restarted)
	run()
	paused := time.Now()
	saved := rows(w.report(""))
	eventually(t, ledger.SavePeriod+soon, "the files have as much", func() bool {
		disk := ledger.Open(w.path("state.json"), 0, time.Now(), slog.New(slog.DiscardHandler))
		all := disk.Sum(time.Now(), time.Hour, func(ledger.Key) (ledger.Key, bool) { return ledger.Key{}, true })
		return all.Rows[ledger.Key{}].Ran >= saved["root"]+saved["nobody"]
	})
	w.killDaemon()
	w.startDaemon()
	openTo(t, w)
	after := w.report("")
	for user, p := range map[string]*program{"root": mine, "nobody": other} {
		// What it had queued ran a little before and after the daemon knew.
		ran, most := time.Duration(w.account(p.pid()).RunNS), paused.Sub(began)-idle
		if got := time.Duration(rows(after)[user]); int64(got) < saved[user] || got < ran*8/10 || got > most {
			t.Errorf("%s has %v, %v before the kill; the device counted %v within %v", user, got, time.Duration(saved[user]), ran, most)
		}
	}
	if after.Total.Share <= 0 || after.Total.Share > 1 || after.CapacityNS < after.WatchedNS*19/10 {
		t.Errorf("%+v", after)
	}
	mine.finish()
	if got := rows(w.report(""))["root"]; got < saved["root"] {
		t.Errorf("after its end %v, before %v", time.Duration(got), time.Duration(saved["root"]))
	}
	if gpus := w.report(control.ByGPU); len(gpus.Rows) != 2 || !slices.ContainsFunc(gpus.Rows, func(r control.ReportRow) bool { return r.GPU == pciOf(1) }) {
		t.Errorf("%+v", gpus.Rows)
	}
	text, err := func() (string, error) {
		cmd := execAs(bin, "report", "--by", "program")
		cmd.Env = w.env()
		out, err := cmd.CombinedOutput()
		return string(out), err
	}()
	if err != nil || strings.Contains(text, "root") || !strings.Contains(text, "nobody") || !strings.Contains(text, "only programs of this user") {
		t.Errorf("%v: %s", err, text)
	}
	other.finish()
}
