// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"math"
	"strings"
	"testing"
)

// near checks a figure within a tolerance.
func near(t *testing.T, what string, got, want, tolerance float64) {
	t.Helper()
	if math.Abs(got-want) > tolerance {
		t.Errorf("%s: %.3f, want %.3f within %.3f", what, got, want, tolerance)
	}
}

// TestTokens checks a request of a prefill and several decode steps: each step ends with a wait and
// is a busy period of its own.
func TestTokens(t *testing.T) {
	s := parse(t, `
duration: 4s
host: {return: 10us}
tenants:
  - name: llm
    arrivals: {rate: 10}
    segments:
      - {kernel: 100us, kernels: 50, launch: 10us, token: true, cpu: 200us}
      - {kernel: 20us, kernels: 40, launch: 42us, copy: 4096, token: true, cpu: 200us, repeat: 8}
`)
	c := run(t, s, Options{Policies: []string{"native"}}).Runs[0].Classes[0]
	near(t, "first token", c.FirstToken.P50, 5.01, 0.02)
	near(t, "per token", c.PerToken.P50, 39*0.042+0.02+0.002+0.01+0.2, 0.02)
	near(t, "request", c.Latency.P50, c.FirstToken.P50+8*c.PerToken.P50, 0.1)
	near(t, "busy periods", c.Periods, 9, 0.1)
	if c.PerToken.N != 8*c.FirstToken.N {
		t.Errorf("%d tokens after %d first ones", c.PerToken.N, c.FirstToken.N)
	}
}

// TestWatcherSplitsRequests checks that pauses of the submitting thread split a request into several
// busy periods, as the watcher of the library does.
func TestWatcherSplitsRequests(t *testing.T) {
	periods := func(stall string) float64 {
		s := parse(t, fmt.Sprintf(`
duration: 4s
tenants:
  - {name: eager, arrivals: {rate: 20}, kernel: 5us, kernels: 600, launch: 42us, %s}
`, stall))
		return run(t, s, Options{Policies: []string{"native"}}).Runs[0].Classes[0].Periods
	}
	near(t, "without a stall", periods("vary: 0"), 1, 0.05)
	if n := periods("stall: {chance: 0.01, time: 3ms}"); n < 2 || n > 7 {
		t.Errorf("%.1f busy periods with six stalls of 3 ms each", n)
	}
}

// TestCopies checks that copies run beside kernels even while their program is suspended, slow
// kernels by the factor of the scenario, and delay other copies by slices of the copy engine.
func TestCopies(t *testing.T) {
	figures := func(gpu, result string) (high, low Class) {
		s := parse(t, fmt.Sprintf(`
duration: 3s
gpu: {%s}
tenants:
  - {name: high, hint: {priority: 10}, arrivals: {rate: 100, jitter: 0.5}, kernel: 1ms, kernels: 3, %s}
  - {name: low, arrivals: {closed: {depth: 2}}, copy: 268435456}
`, gpu, result))
		r := run(t, s, Options{Policies: []string{"HPF:suspend"}}).Runs[0]
		return r.Classes[0], r.Classes[1]
	}
	high, low := figures("", "copy: 0")
	near(t, "P99 beside copies", high.Latency.P99, 3, 0.01)
	near(t, "copies kept", low.Kept, 1, 0.01)
	high, _ = figures("copy_slowdown: 0.25", "copy: 0")
	near(t, "P50 with a quarter of the speed lost", high.Latency.P50, 4, 0.05)
	high, _ = figures("", "copy: 4096")
	near(t, "P99 of a result behind another copy", high.Latency.P99, 4.0, 0.1)
}

// TestUnseenWait checks the effect of a missed wait: a request whose wait counts as submission looks
// launch-bound by its times, but its launches show that it is not.
func TestUnseenWait(t *testing.T) {
	preemptions := func(wait string) uint64 {
		s := parse(t, `
duration: 3s
tenants:
  - {name: high, hint: {priority: 10}, arrivals: {rate: 50}, kernel: 3ms, wait: WAIT}
  - {name: low, arrivals: {closed: {depth: 2}}, kernel: 5ms}
`, "WAIT", wait)
		return run(t, s, Options{Policies: []string{"HPF"}}).Runs[0].Engine.Preemptions
	}
	if seen, unseen := preemptions("sync"), preemptions("unseen"); seen > 5 || unseen > 5 {
		t.Errorf("%d preemptions where the wait is known, %d where it is not", seen, unseen)
	}
}

// TestVariedRequests checks that lengths vary as requested, equally under every policy.
func TestVariedRequests(t *testing.T) {
	s := parse(t, `
duration: 20s
tenants:
  - name: eager
    hint: {priority: 10}
    arrivals: {rate: 20}
    kernel: 5us
    kernels: {lognormal: {median: 200, sigma: 0.3}}
    launch: {lognormal: {median: 40us, sigma: 0.5}}
    vary: 0.1
  - {name: low, arrivals: {closed: {depth: 2}}, kernel: 1ms}
`)
	res := run(t, s, Options{Policies: []string{"native", "HPF"}})
	a, b := res.Runs[0].Classes[0], res.Runs[1].Classes[0]
	near(t, "GPU time", a.GPU, b.GPU, 0.0005)
	alone := a.Alone
	near(t, "median alone", alone.P50, 200*0.040*math.Exp(0.125), 1)
	near(t, "P95 over median alone", alone.P95/alone.P50, math.Exp(1.645*math.Hypot(0.3, 0.1)), 0.2)
}

// TestIdeal checks the lows' ideal: 1 - rate x (kernel time + 0.4 ms).
func TestIdeal(t *testing.T) {
	s := parse(t, `
duration: 3s
tenants:
  - {name: high, hint: {priority: 10}, arrivals: {rate: 100}, kernel: 200us, kernels: 10, launch: 500us}
  - {name: low, count: 3, arrivals: {closed: {depth: 2}}, kernel: 20ms}
`)
	l := run(t, s, Options{Policies: []string{"HPF"}}).Runs[0].Lows
	near(t, "ideal", l.Ideal, 1-100*(0.002+0.0004), 0.005)
	near(t, "of ideal", l.OfIdeal, l.Kept/l.Ideal, 1e-9)
	s = parse(t, "tenants: [{name: a, arrivals: closed, kernel: 1ms}, {name: b, arrivals: {rate: 10}, kernel: 1ms}]")
	if l := run(t, s, Options{}).Runs[0].Lows; l != nil {
		t.Errorf("lows %+v without a priority", l)
	}
}

// TestSegmentMistakes checks the errors of the fields of a request.
func TestSegmentMistakes(t *testing.T) {
	for _, c := range []struct{ field, want string }{
		{"kernel: 1ms, kernels: many", `"many" is not a whole number; write 600`},
		{"kernel: 1ms, kernels: -1", "kernels must be above 0"},
		{"kernel: 1ms, kernels: {uniform: [1, 200000]}", "kernels 200000 is out of range"},
		{"kernel: 1ms, wait: long", `unknown wait "long"; use sync, unseen or none`},
		{"kernel: 1ms, copy: -1", "copy -1 is out of range"},
		{"kernel: 1ms, vary: 9", "vary 9 is out of range"},
		{"kernel: 1ms, stall: {chance: 2}", "stall.chance 2 is out of range"},
		{"kernel: 1ms, segments: [{kernel: 1ms}]", "both segments and kernel"},
		{"segments: [{kernels: 2}]", "segments.0.kernel must be above 0"},
		{"segments: [{kernel: 1ms, repeat: 100000}]", "segments.0.repeat 100000 is out of range"},
		{"segments: [{kernel: 1ms, tokens: true}]", `unknown field "tokens"; known here are kernel, kernels`},
	} {
		_, err := Parse("f.yaml", []byte("tenants:\n  - {name: a, arrivals: closed, "+c.field+"}\n"), nil)
		if err == nil || !strings.HasPrefix(err.Error(), "f.yaml:2: ") || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v\nwant %s", c.field, err, c.want)
		}
	}
}

// TestNobodyStarvesBesideShortRequests checks that a low that runs between launch-bound requests
// counts as progressing: a starvation grant would delay requests by 10 ms.
func TestNobodyStarvesBesideShortRequests(t *testing.T) {
	s := parse(t, `
duration: 6s
tenants:
  - {name: eager, hint: {priority: 10}, arrivals: {rate: 133, jitter: 0.2}, kernel: 5us, kernels: 71, launch: 42us}
  - {name: low, arrivals: {closed: {depth: 2}}, kernel: 1ms}
`)
	for _, r := range run(t, s, Options{Policies: []string{"HPF", "HPF/whole", "HPF/wait"}}).Runs {
		if c := &r.Classes[0]; r.Engine.Grants > 0 || c.Latency.Max > 2*c.Alone.Max {
			t.Errorf("%s: %d grants, at most %.1f ms", r.Name, r.Engine.Grants, c.Latency.Max)
		}
	}
}
