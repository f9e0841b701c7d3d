// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"errors"
	"strings"
	"testing"

	"xsched/internal/model"
)

// TestStrategies: a name selects a strategy, and each strategy does what its line says beside a request that is
// being submitted, shortly before its program waits, and while it waits.
func TestStrategies(t *testing.T) {
	want := map[Strategy][3]string{
		JustInTime:   {"native native", "native -", "native -"},
		TinySlices:   {"1s 1µs", "1s 1µs", "1s 1µs"},
		MediumSlices: {"native 500µs", "native 500µs", "native 500µs"},
		NativeSlices: {"native native", "native native", "native native"},
		StopAtWait:   {"native native", "native native", "native -"},
		WholeRequest: {"native -", "native -", "native -"},
		TinyInTime:   {"native native", "native 1µs", "native 1µs"},
		Batches:      {"native native", "native -", "native -"}, // where no batch is worthwhile
		AllBatches:   {"native native", "native -", "native -"},
	}
	if len(want) != len(strategies)+1 {
		t.Errorf("%d strategies of %d are tested", len(want), len(strategies)+1)
	}
	for strategy, plans := range want {
		for _, base := range []string{"HPF", "HHPF", "CHPF", "AWF"} {
			name := base
			if strategy != "" {
				name += "/" + string(strategy)
			}
			p, err := New(strings.ToLower(name))
			if err != nil || p.Name() != name || p.Strategy() != strategy || Number(name) != Number(base) || Base(name) != base ||
				!strings.HasSuffix(Summary(name), strategies[strategy]) {
				t.Fatalf("%s: %+v, %v, %q", name, p, err, Summary(name))
			}
			for i, f := range []model.Feeding{
				{StopAt: now.Add(ms), StopUntil: now.Add(3 * ms)},
				{StopAt: ago(ms), StopUntil: now.Add(ms)},
				{StopAt: ago(2 * ms), StopUntil: now.Add(ms), Waits: true},
			} {
				f.Class = model.ClassLaunchBound
				v := viewOf(with(queue(9, "br"), func(q *model.Queue) { q.Feeding = f }), queue(0, "br"))
				v.LaunchBound = p.Strategy()
				plan, _ := p.Decide(now, v, p.NewState())
				if got := planText(plan); got != plans[i] {
					t.Errorf("%s, moment %d: plan %q, want %q", name, i, got, plans[i])
				}
			}
		}
	}
}

// TestUnknownStrategies: an error names the strategies of a known policy.
func TestUnknownStrategies(t *testing.T) {
	for name, known := range map[string]string{
		"hpf/x":   "HPF, HPF/batch-all, HPF/in-time, HPF/medium, HPF/native, HPF/tiny, HPF/tiny-in-time, HPF/wait, HPF/whole",
		"HPF/":    "HPF, HPF/batch-all",
		"HPF/a/b": "HPF, HPF/batch-all",
		"RR/wait": strings.Join(Names(), ", "),
		"/wait":   strings.Join(Names(), ", "),
	} {
		if _, err := New(name); !errors.Is(err, ErrUnknown) || !strings.Contains(err.Error(), "known are "+known) || Number(name) != 0 {
			t.Errorf("%s: %v", name, err)
		}
	}
}
