// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"testing"
	"time"

	"xsched/internal/control"
	"xsched/internal/driver"
	"xsched/internal/loop"
)

// Busy periods have no quantiles where they are not requests; marked requests always have them.
func TestLatencyOfBusyPrograms(t *testing.T) {
	for name, c := range map[string]struct {
		marked bool
		ended  uint64
		open   time.Duration
		want   string
	}{
		"a service":            {ended: fewestPeriods, open: longestPeriod},
		"one that starts":      {ended: fewestPeriods - 1, want: control.UncertainFew},
		"a training job":       {open: time.Hour, want: control.UncertainBusy},
		"one that trains now":  {ended: 1000, open: longestPeriod + 1, want: control.UncertainBusy},
		"one that marks":       {marked: true, ended: 1, open: time.Hour},
		"one that will mark":   {marked: true},
		"one that ended steps": {ended: 1000},
	} {
		var h driver.Histogram
		h.RecordN(time.Millisecond, c.ended)
		v := &loop.LatencyView{Marked: c.marked, Requests: c.ended, Total: loop.Durations{Ever: &h, Recent: &h}, Wait: loop.Durations{Ever: &h, Recent: &h}, Own: loop.Durations{Ever: &h, Recent: &h}}
		l := latency(&loop.ClientView{Open: c.open}, v)
		if l.Uncertain != c.want || l.Certain() != (c.want == "" && c.ended > 0) {
			t.Errorf("%s: %q, certain %v, want %q", name, l.Uncertain, l.Certain(), c.want)
		}
	}
	if (*control.Latency)(nil).Certain() {
		t.Error("no latency is certain")
	}
}
