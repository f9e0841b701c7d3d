// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"strings"
	"testing"
	"time"
)

// span is an expected range.
type span struct{ from, to float64 }

func (s span) check(t *testing.T, what string, v float64) {
	t.Helper()
	if v < s.from || v > s.to {
		t.Errorf("%s: %.3f, expected %.3f to %.3f", what, v, s.from, s.to)
	}
}

// TestServing checks the pairs of inference programs and jobs: the P99 over that alone, and what the
// jobs keep together.
func TestServing(t *testing.T) {
	any := span{0, 1e9}
	all := load(t, "serving.yaml")
	cut(all, 10*time.Second)
	for _, c := range []struct {
		name       string
		native     span // P99 / alone
		nativeKept span
		hpf        span
		hpfKept    span // of ideal; of alone for copies
	}{
		{"llm-graph", span{2.2, 2.8}, span{0.55, 0.75}, span{1, 1.10}, span{0.97, 1.02}},
		{"llm-cpu-copy", span{2.2, 2.8}, span{0.55, 0.75}, span{1, 1.10}, span{0.97, 1.02}},
		{"llm-cpu-copy-unseen", span{2.2, 2.8}, span{0.55, 0.75}, span{1, 1.10}, span{0.97, 1.02}},
		{"llm-three-lows", span{100, 1e9}, any, span{1, 1.15}, span{0.95, 1.02}},
		{"llm-copies", span{1.15, 1.40}, span{0.99, 1.01}, span{1.15, 1.40}, span{0.99, 1.01}},
		{"llm-tiny", span{1.3, 2.8}, span{0.55, 0.85}, span{1, 1.10}, span{0.97, 1.02}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, err := all.Split(c.name)
			if err != nil {
				t.Fatal(err)
			}
			res := run(t, s[0], Options{Policies: []string{"native", "HPF"}})
			native, hpf := &res.Runs[0], &res.Runs[1]
			ratio := func(r *RunResult) float64 { return r.Classes[0].Latency.P99 / r.Classes[0].Alone.P99 }
			kept, ofIdeal := native.Classes[1].Kept, hpf.Classes[1].Kept
			if native.Lows != nil {
				kept, ofIdeal = native.Lows.Kept, hpf.Lows.OfIdeal
			}
			c.native.check(t, "native P99", ratio(native))
			c.nativeKept.check(t, "natively kept", kept)
			c.hpf.check(t, "HPF P99", ratio(hpf))
			c.hpfKept.check(t, "kept of ideal", ofIdeal)
		})
	}
}

// TestLaunchBound checks the pairs with launch-bound requests: no slower than natively, and the jobs keep
// nearly what they keep natively.
func TestLaunchBound(t *testing.T) {
	all := load(t, "serving.yaml")
	cut(all, 10*time.Second)
	for _, name := range []string{"bert-eager", "llm-eager", "mid-request"} {
		s, err := all.Split(name)
		if err != nil {
			t.Fatal(err)
		}
		res := run(t, s[0], Options{Policies: []string{"native", "HPF"}})
		native, hpf := &res.Runs[0], &res.Runs[1]
		high := &hpf.Classes[0]
		span{0, min(1.10*high.Alone.P99, native.Classes[0].Latency.P99)}.check(t, name+" P99", high.Latency.P99)
		span{native.Lows.Kept - 0.05, 1}.check(t, name+" kept", hpf.Lows.Kept)
		if name == "mid-request" && high.Periods < 1.9 {
			t.Errorf("%s: %.2f busy periods a request of two segments", name, high.Periods)
		}
	}
}

// TestPoorPrediction checks what happens where the end of requests can't be predicted: a stop at the wait takes more
// than half of the driver's delay away and costs the jobs less than five points, so it is what HPF falls back to.
func TestPoorPrediction(t *testing.T) {
	all := load(t, "varied.yaml")
	cut(all, 10*time.Second)
	for _, c := range []struct {
		name      string
		fallsBack bool
	}{{"3ms", false}, {"9ms", true}, {"26ms", true}} {
		s, err := all.Split(c.name)
		if err != nil {
			t.Fatal(err)
		}
		runs := run(t, s[0], Options{Policies: []string{"native", "HPF/wait", "HPF/in-time"}}).Runs
		delay := func(i int) float64 { h := &runs[i].Classes[0]; return h.Latency.Mean - h.Alone.Mean }
		span{0, delay(0) / 2}.check(t, c.name+": mean delay, stopped at the wait", delay(1))
		span{runs[0].Lows.Kept - 0.05, 1}.check(t, c.name+": kept, stopped at the wait", runs[1].Lows.Kept)
		span{0, delay(0) / 2}.check(t, c.name+": mean delay just in time", delay(2))
		if c.fallsBack {
			span{runs[1].Lows.Kept - 0.01, runs[1].Lows.Kept + 0.01}.check(t, c.name+": kept, just in time", runs[2].Lows.Kept)
		}
	}
}

// TestServingTokens checks the time to the first token and from one to the next, and that a request of
// many parts costs the job no switch for each.
func TestServingTokens(t *testing.T) {
	for _, c := range []struct {
		name string
		less float64 // of what the job keeps natively
	}{{"serving", 0}, {"serving-eager", 0.05}} {
		s, err := load(t, "serving.yaml").Split(c.name)
		if err != nil {
			t.Fatal(err)
		}
		res := run(t, s[0], Options{Policies: []string{"native", "HPF"}})
		native, hpf := &res.Runs[0].Classes[0], &res.Runs[1].Classes[0]
		span{1.5, 1e9}.check(t, c.name+": first token natively", native.FirstToken.P99/native.AloneFirst.P99)
		span{1.5, 1e9}.check(t, c.name+": per token natively", native.PerToken.P99/native.AlonePer.P99)
		span{1, 1.05}.check(t, c.name+": first token", hpf.FirstToken.P99/hpf.AloneFirst.P99)
		span{0.99, 1.02}.check(t, c.name+": per token", hpf.PerToken.P99/hpf.AlonePer.P99)
		span{res.Runs[0].Lows.Kept - c.less, 1}.check(t, c.name+": kept", res.Runs[1].Lows.Kept)
	}
}

// TestServingUnseen checks the same where the daemon is slower than the program: it never sees that the queue is empty between
// the prompt and its tokens.
func TestServingUnseen(t *testing.T) {
	s, err := load(t, "serving.yaml").Split("serving-eager")
	if err != nil {
		t.Fatal(err)
	}
	slow := Duration(150 * time.Microsecond)
	s[0].Host.Reaction = &slow
	res := run(t, s[0], Options{Policies: []string{"native", "HPF"}})
	hpf := &res.Runs[1].Classes[0]
	span{1, 1.05}.check(t, "first token", hpf.FirstToken.P99/hpf.AloneFirst.P99)
	span{0.99, 1.02}.check(t, "per token", hpf.PerToken.P99/hpf.AlonePer.P99)
	span{res.Runs[0].Lows.Kept - 0.03, 1}.check(t, "kept", res.Runs[1].Lows.Kept)
}

// TestServingQueued checks the first token of a busy server on a noisy host: half of the prompts follow the last token of
// the request before.
func TestServingQueued(t *testing.T) {
	s, err := load(t, "serving.yaml").Split("serving-eager")
	if err != nil {
		t.Fatal(err)
	}
	server := &s[0].Tenants[0]
	server.Arrivals.Poisson = 16
	server.Vary = 0.2
	server.Stall.Chance = 0.002
	server.Stall.Time = Exponential(600 * time.Microsecond)
	server.Segments[1].CPU = LogNormal(120*time.Microsecond, 0.6)
	res := run(t, s[0], Options{Policies: []string{"native", "HPF"}})
	hpf := &res.Runs[1].Classes[0]
	span{1, 1.01}.check(t, "first token, P50", hpf.FirstToken.P50/hpf.AloneFirst.P50)
	span{1, 1.05}.check(t, "first token, P99", hpf.FirstToken.P99/hpf.AloneFirst.P99)
	span{0.99, 1.02}.check(t, "per token", hpf.PerToken.Mean/hpf.AlonePer.Mean)
	span{res.Runs[0].Lows.Kept - 0.02, 1}.check(t, "kept", res.Runs[1].Lows.Kept)
}

// TestCases checks the selection of cases.
func TestCases(t *testing.T) {
	s := load(t, "serving.yaml")
	all, err := s.Split()
	if err != nil || len(all) != len(s.Cases) || len(all) < 8 {
		t.Fatalf("%d of %d cases, %v", len(all), len(s.Cases), err)
	}
	one, err := s.Split("bert-eager")
	if err != nil || len(one) != 1 || len(one[0].Tenants) != 2 || one[0].Tenants[0].Name != "bert" {
		t.Errorf("%v, %v", one, err)
	}
	if _, err := s.Split("none"); err == nil || !strings.Contains(err.Error(), "it has llm-graph") {
		t.Errorf("got %v", err)
	}
	if _, err := load(t, "eager.yaml").Split("x"); err == nil || !strings.Contains(err.Error(), "it has none") {
		t.Errorf("got %v", err)
	}
	for _, c := range []struct{ text, want string }{
		{"cases: [{name: a, tenants: [b]}]", `f.yaml:1: case a: there is no tenant "b"; name one of`},
		{"cases: [{name: a}]", "f.yaml:1: case a has no tenants"},
		{"cases: [{tenants: [a]}]", "f.yaml:1: case 1 has no name of its own"},
	} {
		_, err := Parse("f.yaml", []byte(c.text+"\ntenants: [{name: a, kernel: 1ms, arrivals: closed}]\n"), nil)
		if err == nil || !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("got %v\nwant %s", err, c.want)
		}
	}
}

// TestNearTheLimit checks requests that keep the device busy although they are submitted nearly until their
// end: they are protected like others that wait for the device, whatever the speed of the CPU.
func TestNearTheLimit(t *testing.T) {
	for _, launch := range []string{"30us", "45us", "50us", "55us", "60us"} {
		s, err := Parse("near.yaml", []byte(strings.ReplaceAll(`
name: near the limit
duration: 30s
tenants:
  - name: resnet
    hint: {priority: 10}
    arrivals: {rate: 20, jitter: 0.2}
    kernel: {lognormal: {median: 61us, sigma: 0.2}}
    kernels: 160
    launch: {lognormal: {median: LAUNCH, sigma: 0.15}}
    vary: 0.05
    copy: 4096
  - {name: training, arrivals: {closed: {depth: 2}}, kernel: {lognormal: {median: 1ms, sigma: 0.5}}, kernels: 40}
`, "LAUNCH", launch)), nil)
		if err != nil {
			t.Fatal(err)
		}
		runs := run(t, s, Options{Policies: []string{"HPF/in-time", "HPF"}}).Runs
		for i := range runs {
			high := &runs[i].Classes[0]
			span{0.9, 1.10}.check(t, launch+": P99", high.Latency.P99/high.Alone.P99)
			span{0.97, 1.02}.check(t, launch+": kept of ideal", runs[i].Lows.OfIdeal)
		}
	}
}
