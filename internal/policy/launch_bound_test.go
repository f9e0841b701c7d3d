// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"errors"
	"strings"
	"testing"

	"xsched/internal/model"
)

// TestStrategies: a name selects a strategy, and each strategy does what its fields say beside a request that is
// being submitted, shortly before its program waits, and while it waits.
func TestStrategies(t *testing.T) {
	atWait := func(_ model.Time, q *Queue) (bool, model.Time) { return q.Feeding.Waits, model.Never }
	more := Strategies{
		"tiny": {Summary: "1", Tiny: true}, "medium": {Summary: "2", Slice: UsefulSlice, Stops: func(model.Time, *Queue) (bool, model.Time) { return false, model.Never }},
		"wait": {Summary: "3", Stops: atWait}, "tiny-in-time": {Summary: "4", TinyStop: true},
	}
	want := map[string][3]string{
		"":              {"native native", "native -", "native -"}, // where no batch is worthwhile
		"/in-time":      {"native native", "native -", "native -"},
		"/batch-all":    {"native native", "native -", "native -"},
		"/tiny":         {"1s 1µs", "1s 1µs", "1s 1µs"},
		"/medium":       {"native 500µs", "native 500µs", "native 500µs"},
		"/wait":         {"native native", "native native", "native -"},
		"/tiny-in-time": {"native native", "native 1µs", "native 1µs"},
	}
	for strategy, plans := range want {
		for _, base := range []string{"HPF", "HHPF", "CHPF", "AWF"} {
			name := base + strategy
			p, err := NewWith(strings.ToLower(name), more)
			if err != nil || p.Name() != name || (p.Strategy() != nil) != (strategy != "") || Base(name) != base {
				t.Fatalf("%s: %+v, %v", name, p, err)
			}
			if known := strategies[strings.TrimPrefix(strategy, "/")]; known != nil && (Number(name) != Number(base) || !strings.HasSuffix(Summary(name), known.Summary)) {
				t.Errorf("%s: number %d, %s", name, Number(name), Summary(name))
			}
			if _, err := New(name); more[strings.TrimPrefix(strategy, "/")] != nil && err == nil {
				t.Errorf("%s: the daemon has it", name)
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
				if got := strings.ReplaceAll(planText(plan), " gather", ""); got != plans[i] {
					t.Errorf("%s, moment %d: plan %q, want %q", name, i, got, plans[i])
				}
			}
		}
	}
}

// TestUnknownStrategies: an error names the strategies of a known policy.
func TestUnknownStrategies(t *testing.T) {
	for name, known := range map[string]string{
		"hpf/x":   "HPF, HPF/batch-all, HPF/in-time",
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
