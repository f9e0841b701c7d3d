// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"xsched/internal/control"
	"xsched/internal/ledger"
)

// report returns the rows of a report by user and GPU time.
func (w *world) report(args ...string) control.Report {
	w.t.Helper()
	var r control.Report
	if err := json.Unmarshal([]byte(w.must(append([]string{"report", "--json"}, args...)...)), &r); err != nil {
		w.t.Fatal(err)
	}
	return r
}

// TestReport: programs of two users on two GPUs have the GPU time that the device counted, through a restart and
// after SIGKILL. A program that has ended keeps its row, and a user does not see those of others.
func TestReport(t *testing.T) {
	t.Parallel()
	cache := asNobody(t)
	bin, tenant := copyFor(t, cache, xschedPath(t)), copyFor(t, cache, product(t, "virtual/tenant"))
	w := newWorld(t)
	openTo(t, w)
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
		before := rows(w.report())
		for _, p := range both {
			w.waitLevel(p.pid(), 3)
			p.send("loop")
		}
		eventually(t, soon, "both have run for a second more", func() bool {
			now := rows(w.report())
			return now["root"] > before["root"]+1e9 && now["nobody"] > before["nobody"]+1e9
		})
		for _, p := range both {
			p.send("pause")
			p.expect("P", soon)
		}
	}
	run()
	if err := w.serve.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	_ = w.serve.Wait()
	w.client.Close()
	w.startDaemon()
	openTo(t, w)
	run()
	saved := rows(w.report())
	time.Sleep(ledger.SavePeriod + 500*time.Millisecond)
	w.killDaemon()
	w.startDaemon()
	openTo(t, w)
	after := w.report()
	for user, p := range map[string]*program{"root": mine, "nobody": other} {
		ran := time.Duration(w.account(p.pid()).RunNS)
		if got := rows(after)[user]; got < saved[user] || float64(got) < 0.8*float64(ran) || float64(got) > 1.2*float64(ran)+3e8 {
			t.Errorf("%s has %v, %v before the kill; the device counted %v", user, time.Duration(got), time.Duration(saved[user]), ran)
		}
	}
	if after.Total.Share <= 0 || after.Total.Share > 1 || after.CapacityNS < after.WatchedNS*19/10 {
		t.Errorf("%+v", after)
	}
	mine.finish()
	if got := rows(w.report())["root"]; got < saved["root"] {
		t.Errorf("after its end %v, before %v", time.Duration(got), time.Duration(saved["root"]))
	}
	if gpus := w.report("--by", "gpu"); len(gpus.Rows) != 2 || !slices.ContainsFunc(gpus.Rows, func(r control.ReportRow) bool { return r.GPU == pciOf(1) }) {
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
