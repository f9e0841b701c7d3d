// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"xsched/internal/model"
	"xsched/internal/policy"
)

const scenarios = "../../examples/scenarios"

func load(t testing.TB, name string) *Scenario {
	t.Helper()
	s, err := Load(filepath.Join(scenarios, name))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func parse(t testing.TB, text string, replace ...string) *Scenario {
	t.Helper()
	s, err := Parse("test.yaml", []byte(strings.NewReplacer(replace...).Replace(text)), nil)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func run(t testing.TB, s *Scenario, o Options) *Result {
	t.Helper()
	res, err := Run(t.Context(), s, o)
	if err != nil {
		t.Fatal(err)
	}
	return res
}

// cut shortens an example for tests of other properties.
func cut(s *Scenario, d time.Duration) {
	s.Duration = min(s.Duration, Duration(d))
	w := s.Duration / 10
	s.Warmup = &w
}

// TestExamples runs every scenario of the repository under every policy, and writes every kind of output.
func TestExamples(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(scenarios, "*.yaml"))
	if err != nil || len(files) < 5 {
		t.Fatalf("%d scenarios, %v", len(files), err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			s, err := Load(file)
			if err != nil {
				t.Fatal(err)
			}
			cut(s, 400*time.Millisecond)
			policies := append(policy.Names(), "native")
			if s.Devices > 100 {
				policies = []string{"HPF", "native"}
			}
			all, err := s.Split()
			if err != nil {
				t.Fatal(err)
			}
			res := run(t, all[0], Options{Policies: policies, Draw: 20 * time.Millisecond})
			for _, write := range []func(io.Writer) error{res.WriteTable, res.WriteJSON, res.WriteCSV, res.WriteSVG, res.WriteHTML} {
				var b bytes.Buffer
				if err := write(&b); err != nil || b.Len() == 0 {
					t.Errorf("%d bytes, %v", b.Len(), err)
				}
				if text := b.String(); strings.Contains(text, "NaN") || strings.Contains(text, "Inf") {
					t.Errorf("output contains NaN or Inf:\n%s", text)
				}
			}
		})
	}
}

// TestDeterministic checks that results depend on the seed, but not on the number of workers.
func TestDeterministic(t *testing.T) {
	for _, name := range []string{"fleet.yaml", "gang.yaml", "inference.yaml"} {
		s := load(t, name)
		cut(s, time.Second)
		text := func(o Options) string {
			var b bytes.Buffer
			if err := run(t, s, o).WriteJSON(&b); err != nil {
				t.Fatal(err)
			}
			return b.String()
		}
		one := text(Options{Workers: 1})
		if two := text(Options{Workers: 2}); two != one {
			t.Errorf("%s: two workers change the result", name)
		}
		if again := text(Options{Workers: 1}); again != one {
			t.Errorf("%s: a second run differs", name)
		}
		if other := text(Options{Seed: 77}); other == one {
			t.Errorf("%s: another seed gives the same result", name)
		}
	}
}

// TestCompareHasSameRequests checks that all policies get the same requests.
func TestCompareHasSameRequests(t *testing.T) {
	s := load(t, "bursts.yaml")
	res := run(t, s, Options{Policies: []string{"HPF", "native"}})
	for i := range 2 {
		a, b := res.Runs[0].Classes[i], res.Runs[1].Classes[i]
		if a.Offered != b.Offered || a.Offered < 100 || math.Abs(a.GPU-b.GPU) > 0.002 {
			t.Errorf("%s: %d requests with %.4f of the GPU, and %d with %.4f", a.Name, a.Offered, a.GPU, b.Offered, b.GPU)
		}
	}
}

// TestTimeAddsUp checks, for random tenants, policies and modes, that device time is fully accounted
// for, that tenants' shares sum to it, and that no request is lost.
func TestTimeAddsUp(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := &Scenario{Duration: Duration(300 * time.Millisecond), Devices: rapid.IntRange(1, 3).Draw(t, "devices")}
		s.Policy = rapid.SampledFrom(policy.Names()).Draw(t, "policy")
		s.Mode = rapid.SampledFrom(model.Modes).Draw(t, "mode")
		s.Level = rapid.IntRange(1, 3).Draw(t, "level")
		none := Duration(0)
		s.Warmup = &none
		ret := Duration(rapid.SampledFrom([]time.Duration{0, 20 * time.Microsecond}).Draw(t, "return"))
		s.Host.Return = &ret
		for i := range rapid.IntRange(1, 4).Draw(t, "tenants") {
			ten := Tenant{
				Name: string(rune('a' + i)), Count: rapid.IntRange(1, 3).Draw(t, "count"), Ranks: rapid.IntRange(1, s.Devices).Draw(t, "ranks"),
				Kernels: Exactly(rapid.IntRange(1, 3).Draw(t, "kernels")), OneProcess: rapid.Bool().Draw(t, "one process"),
				Kernel: rapid.SampledFrom([]Dist{Fixed(90 * time.Microsecond), Uniform(time.Millisecond, 5*time.Millisecond), LogNormal(3*time.Millisecond, 1), Exponential(20 * time.Millisecond)}).Draw(t, "kernel"),
				Hint:   Hint{Priority: model.Priority(rapid.IntRange(-2, 2).Draw(t, "priority")), Utilization: rapid.IntRange(0, 50).Draw(t, "utilization")},
				Launch: Fixed(rapid.SampledFrom([]time.Duration{0, 10 * time.Microsecond}).Draw(t, "launch")),
			}
			if rapid.IntRange(0, 3).Draw(t, "gang") == 0 {
				ten.Hint.Gang = "g"
			}
			if rapid.IntRange(0, 3).Draw(t, "stops") == 0 {
				ten.Start, ten.Stop = Duration(50*time.Millisecond), Duration(200*time.Millisecond)
			}
			ten.Arrivals = rapid.SampledFrom([]Arrivals{
				{Poisson: 50},
				{Rate: 30, Jitter: 0.5},
				{Closed: &Closed{Depth: 2}},
				{Closed: &Closed{Depth: 1, Think: Fixed(time.Millisecond)}},
				{OnOff: &OnOff{Rate: 200, On: Fixed(20 * time.Millisecond), Off: Exponential(30 * time.Millisecond)}},
				{Trace: []Request{{At: 0}, {At: time.Millisecond, Work: 2 * time.Millisecond, Kernels: 4}}},
			}).Draw(t, "arrivals")
			s.Tenants = append(s.Tenants, ten)
		}
		if err := s.Check(); err != nil {
			t.Fatal(err)
		}
		p := newPlan(s, s.Policy, s.Mode, 5)
		for _, member := range s.cells() {
			c, err := newCell(p, member)
			if err != nil {
				t.Fatal(err)
			}
			if err := c.run(context.Background()); err != nil {
				t.Fatal(err)
			}
			var ran time.Duration
			for _, d := range c.devices {
				if sum := d.RunNS + d.SwitchNS + d.IdleNS; sum != int64(p.duration) {
					t.Fatalf("a device accounts for %v of %v", time.Duration(sum), p.duration)
				}
				ran += time.Duration(d.RunNS)
			}
			var had time.Duration
			for i := range c.classes {
				had += c.classes[i].run
			}
			if had != ran {
				t.Fatalf("the devices ran %v, the tenants had %v", ran, had)
			}
			for _, in := range c.insts {
				if n := len(in.active) + len(in.returning); n > in.width {
					t.Fatalf("%d requests at a time, %d allowed", n, in.width)
				}
			}
		}
	})
}

// TestGangRunsTogether runs tensor-parallel ranks beside single programs. Without gangs, a step waits
// for the slowest rank.
func TestGangRunsTogether(t *testing.T) {
	s := load(t, "gang.yaml")
	if n := len(s.cells()); n != 1 {
		t.Fatalf("%d cells, a gang makes one", n)
	}
	res := run(t, s, Options{Policies: []string{"HPF"}})
	for _, c := range res.Runs[0].Classes {
		if c.Done == 0 {
			t.Errorf("%s did nothing", c.Name)
		}
	}
}

func TestCells(t *testing.T) {
	s := parse(t, `
devices: 6
tenants:
  - {name: a, count: 6, kernel: 1ms, arrivals: closed}
  - {name: b, on: [0, 2], ranks: 2, kernel: 1ms, arrivals: closed}
  - {name: c, on: [4], kernel: 1ms, arrivals: closed, hint: {gang: x}}
  - {name: d, on: [5], kernel: 1ms, arrivals: closed, hint: {gang: x}}
`)
	var got [][]int
	for _, c := range s.cells() {
		got = append(got, c.devices)
	}
	want := [][]int{{0, 2}, {1}, {3}, {4, 5}}
	if !slices.EqualFunc(got, want, slices.Equal[[]int]) {
		t.Errorf("cells %v, want %v", got, want)
	}
}

// TestMistakes checks that every error has a line and a remedy.
func TestMistakes(t *testing.T) {
	tenant := "\ntenants:\n  - name: a\n    kernel: 1ms\n    arrivals: closed\n"
	for _, c := range []struct{ name, text, want string }{
		{"empty", "", "f.yaml: the scenario is empty; give it at least"},
		{"no tenants", "duration: 1s", "f.yaml:1: there are no tenants; list them"},
		{"unknown field", "durration: 1s" + tenant, `f.yaml:1: unknown field "durration"; known here are name, about, duration`},
		{"unknown field deep", tenant + "    hint: {prio: 3}\n", `f.yaml:6: unknown field "prio"; known here are priority`},
		{"no unit", "duration: 10" + tenant, `f.yaml:1: "10" is not a duration; write it with a unit`},
		{"negative", "duration: -1s" + tenant, `f.yaml:1: duration "-1s" is negative`},
		{"policy", "policy: BEST" + tenant, `f.yaml:1: unknown policy "BEST": known are`},
		{"mode", "name: x\nmode: fast" + tenant, `f.yaml:2: unknown mode "fast"`},
		{"warmup", "duration: 1s\nwarmup: 2s" + tenant, "f.yaml:2: warmup 2s is not shorter than duration 1s"},
		{"kernel", "tenants:\n  - name: a\n    kernel: 0\n    arrivals: closed\n", "f.yaml:3: tenant a: kernel must be above 0; write"},
		{"no arrivals", "tenants:\n  - name: a\n    kernel: 1ms\n", "f.yaml:2: tenant a: 0 kinds of arrivals; use one of"},
		{"two arrivals", "tenants:\n  - name: a\n    kernel: 1ms\n    arrivals: {rate: 1, poisson: 2}\n", "f.yaml:4: tenant a: 2 kinds of arrivals; use one of"},
		{"arrivals", "tenants:\n  - name: a\n    kernel: 1ms\n    arrivals: {often: 1}\n", `f.yaml:4: unknown field "often"; known here are poisson, rate, onoff, closed, trace, jitter`},
		{"closed", "tenants:\n  - name: a\n    kernel: 1ms\n    arrivals: {closed: {dept: 1}}\n", `f.yaml:4: unknown field "dept"; known here are depth, think`},
		{"dist", "tenants:\n  - name: a\n    kernel: {normal: 1ms}\n    arrivals: closed\n", `f.yaml:3: unknown field "normal"; known here are fixed, uniform`},
		{"uniform", "tenants:\n  - name: a\n    kernel: {uniform: [2ms, 1ms]}\n    arrivals: closed\n", "f.yaml:3: tenant a: kernel its upper end is below its lower end"},
		{"device", tenant + "    on: [0, 3]\n", "f.yaml:6: tenant a: there is no device 3; use 0 to 0"},
		{"ranks", tenant + "    ranks: 2\n", "f.yaml:6: tenant a: ranks 2 is out of range; use 1 to 1"},
		{"hint", tenant + "    hint: {priority: 300}\n", "f.yaml:6: priority 300 is out of range; use -256 to 255"},
		{"same name", tenant + "  - name: a\n    kernel: 1ms\n    arrivals: closed\n", "f.yaml:6: tenant a: duplicate name"},
		{"type", "devices: many" + tenant, `f.yaml:1: "many" is not a whole number`},
		{"trace", "tenants:\n  - name: a\n    kernel: 1ms\n    arrivals: {trace: none.csv}\n", "f.yaml:4: open trace: file does not exist"},
		{"not YAML", "a: [", "f.yaml:"},
		{"two documents", "duration: 1s" + tenant + "---\nx: 1\n", "f.yaml: the file contains more than one document"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := Parse("f.yaml", []byte(c.text), func(string) (io.ReadCloser, error) { return nil, os.ErrNotExist })
			if err == nil || !strings.HasPrefix(err.Error(), c.want) {
				t.Errorf("got %v\nwant %s", err, c.want)
			}
			if _, ok := errors.AsType[*Error](err); !ok {
				t.Errorf("%T", err)
			}
		})
	}
	s := parse(t, tenant)
	if _, err := Run(t.Context(), s, Options{Policies: []string{"HPF", "NONE"}}); err == nil || !strings.Contains(err.Error(), "known are") {
		t.Errorf("got %v", err)
	}
}

func TestTrace(t *testing.T) {
	got, err := ReadTrace("t", strings.NewReader("# a remark\n0\n0.5,1000\n 1.5 , 20 , 3 # three\n"))
	want := []Request{{}, {At: 500 * time.Millisecond, Work: time.Millisecond}, {At: 1500 * time.Millisecond, Work: 20 * time.Microsecond, Kernels: 3}}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("%v, %v", got, err)
	}
	for text, want := range map[string]string{
		"1\n0.5\n": "t:2: earlier", "x\n": `t:1: "x" is not`, "1,2,3,4\n": "t:1: more than three", "-1\n": `t:1: "-1" is not`, "NaN\n": "t:1:",
	} {
		if _, err := ReadTrace("t", strings.NewReader(text)); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func TestCancel(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Run(ctx, load(t, "fleet.yaml"), Options{}); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

// FuzzParse checks that arbitrary scenarios and traces fail only with an error, and that small valid
// ones run.
func FuzzParse(f *testing.F) {
	files, err := filepath.Glob(filepath.Join(scenarios, "*.yaml"))
	if err != nil {
		f.Fatal(err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(text), "0\n0.1,20\n")
	}
	f.Fuzz(func(t *testing.T, text, trace string) {
		s, err := Parse("fuzz.yaml", []byte(text), func(string) (io.ReadCloser, error) {
			return io.NopCloser(strings.NewReader(trace)), nil
		})
		if err != nil {
			return
		}
		if s.Devices > 4 || len(s.instances()) > 20 {
			return
		}
		load := 0.0
		for i := range s.Tenants {
			a := &s.Tenants[i].Arrivals
			load += a.Rate + a.Poisson
			if a.OnOff != nil {
				load += a.OnOff.Rate
			}
		}
		if load > 1e5 {
			return
		}
		s.Duration, s.Warmup = Duration(2*time.Millisecond), new(Duration)
		if _, err := Run(t.Context(), s, Options{Workers: 1}); err != nil && !strings.Contains(err.Error(), "configuration") {
			t.Fatal(err)
		}
	})
}

// BenchmarkEvents measures events per second on one core; the goal is a million. Result.Events
// defines an event.
func BenchmarkEvents(b *testing.B) {
	for _, c := range []struct{ name, file, policy string }{
		{"inference-HPF", "inference.yaml", "HPF"},
		{"inference-native", "inference.yaml", "native"},
		{"inference-suspend", "inference.yaml", "HPF:suspend"},
		{"inference-FIFO", "inference.yaml", "FIFO"},
		{"gang-HPF", "gang.yaml", "HPF"},
	} {
		b.Run(c.name, func(b *testing.B) {
			s := load(b, c.file)
			s.Duration = Duration(200 * time.Second)
			var events, decisions uint64
			for b.Loop() {
				res := run(b, s, Options{Policies: []string{c.policy}, Workers: 1})
				events += res.Events
				decisions += res.Runs[0].Engine.Decisions
			}
			b.ReportMetric(float64(events)/b.Elapsed().Seconds(), "events/s")
			b.ReportMetric(float64(decisions)/b.Elapsed().Seconds(), "decisions/s")
		})
	}
}

// BenchmarkFleet simulates 1,000 GPUs and 10,000 tenants for one minute; the goal is below 60 s.
func BenchmarkFleet(b *testing.B) {
	s := load(b, "fleet.yaml")
	if s.Devices != 1000 || len(s.instances()) != 10_000 || s.Duration != Duration(time.Minute) {
		b.Fatal("the fleet has changed")
	}
	var events uint64
	for b.Loop() {
		events += run(b, s, Options{}).Events
	}
	b.ReportMetric(float64(events)/b.Elapsed().Seconds(), "events/s")
}
