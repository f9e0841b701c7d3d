// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"bytes"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"xsched/internal/policy"
	"xsched/internal/record"
)

// recorded simulates a scenario under a policy and returns its recording.
func recorded(t *testing.T, s *Scenario, name string) (*Recording, *RunResult) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "rec")
	o := Options{Policies: []string{name}}
	l, err := record.Create(path, record.Options{Header: s.RecordHeader("test", o), Wait: true})
	if err != nil {
		t.Fatal(err)
	}
	o.Record = l
	res := run(t, s, o)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if st := l.Stats(); st.Dropped > 0 {
		t.Fatalf("%d records dropped", st.Dropped)
	}
	r, err := record.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.Close() }()
	rec, err := ReadRecording(r)
	if err != nil {
		t.Fatal(err)
	}
	return rec, &res.Runs[0]
}

// TestReplayReproduces checks that the engine reproduces every recorded decision, under every policy
// and mode.
func TestReplayReproduces(t *testing.T) {
	for _, file := range []string{"inference.yaml", "gang.yaml", "bursts.yaml", "slo.yaml"} {
		for _, name := range append(policy.Names(), "native", "HPF:suspend", "HPF:timeslice") {
			t.Run(file+"/"+name, func(t *testing.T) {
				s := load(t, file)
				cut(s, 2e9)
				rec, _ := recorded(t, s, name)
				if rec.Decisions < 2 || rec.Same != rec.Decisions || rec.Gaps != 0 || rec.Truncated {
					t.Errorf("%s", rec.Summary())
				}
			})
		}
	}
}

// TestReplayModels checks the accuracy of the model: for the recorded policy against the recording,
// for another policy against a simulation with the true demand. The recordings are simulations.
func TestReplayModels(t *testing.T) {
	for _, c := range []struct {
		from, to string
		p50, gpu float64 // tolerance
	}{
		{"HPF", "native", 0.10, 0.05},
		{"native", "HPF", 0.15, 0.05},
		{"HPF:suspend", "HPF:live", 0.15, 0.05},
		{"HPF", "HPF", 0.05, 0.05},
	} {
		t.Run(c.from+" to "+c.to, func(t *testing.T) {
			s := load(t, "inference.yaml")
			w := Duration(0)
			s.Warmup = &w
			rec, _ := recorded(t, s, c.from)
			res, err := Replay(t.Context(), rec, c.to)
			if err != nil {
				t.Fatal(err)
			}
			truth := run(t, s, Options{Policies: []string{c.to}}).Runs[0]
			high := res.Queues[0]
			check := func(what string, got, want, tolerance float64) {
				off := got/want - 1
				t.Logf("%s: %.3f, want %.3f (%+.1f %%)", what, got, want, 100*off)
				if math.Abs(off) > tolerance {
					t.Errorf("%s is %+.1f %% off, tolerance %.0f %%", what, 100*off, 100*tolerance)
				}
			}
			check("P50 of the recorded policy", high.Model.Latency.P50, high.Recorded.Latency.P50, 0.10)
			check("P50 of the other", high.Other.Latency.P50, truth.Classes[0].Latency.P50, c.p50)
			lows := 0.0
			for _, q := range res.Queues[1:] {
				lows += q.Other.GPU
			}
			check("GPU time of the lows", lows, truth.Classes[1].GPU, c.gpu)
			var b bytes.Buffer
			if err := res.WriteTable(&b); err != nil || !strings.Contains(b.String(), "Estimated, because") {
				t.Errorf("%v\n%s", err, b.String())
			}
		})
	}
}

func TestReplayOfNothing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "rec")
	s := load(t, "inference.yaml")
	l, err := record.Create(path, record.Options{Header: s.RecordHeader("test", Options{}), Wait: true})
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	r, err := record.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.Close() }()
	rec, err := ReadRecording(r)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Replay(t.Context(), rec, "HPF"); err == nil || !strings.Contains(err.Error(), "ever busy") {
		t.Errorf("got %v", err)
	}
}

// FuzzRecording checks that reading and replaying an arbitrary recording terminates.
func FuzzRecording(f *testing.F) {
	f.Add(int64(3), uint16(40), false)
	f.Fuzz(func(t *testing.T, seed int64, cutAt uint16, other bool) {
		s := parse(t, "duration: 30ms\ntenants:\n  - {name: a, count: 2, kernel: 1ms, arrivals: {poisson: 300}, hint: {priority: 1}}\n  - {name: b, kernel: 3ms, arrivals: closed}\n")
		path := filepath.Join(t.TempDir(), "rec")
		l, err := record.Create(path, record.Options{Header: s.RecordHeader("test", Options{}), Wait: true})
		if err != nil {
			t.Fatal(err)
		}
		run(t, s, Options{Record: l, Seed: uint64(seed)})
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		text := fileText(t, path)
		if int(cutAt) < len(text) {
			if other {
				text[cutAt] ^= byte(seed) | 1
			} else {
				text = text[:cutAt]
			}
		}
		r, err := record.NewReader(bytes.NewReader(text))
		if err != nil {
			return
		}
		rec, err := ReadRecording(r)
		if err != nil {
			return
		}
		_, _ = Replay(t.Context(), rec, "FIFO")
	})
}

func fileText(t *testing.T, path string) []byte {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return text
}
