// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"fmt"
	"io"
	"strings"

	"xsched/internal/bench"
	"xsched/internal/report"
)

// WriteTable writes the comparison as text.
func (r *Result) WriteTable(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s, %s\n", r.deviceText(), r.machineText())
	fmt.Fprintf(&b, "high: %s kernels, %g requests a second; low: %s kernels back to back; order seed %d\n",
		bench.Micros(r.Workload.HighUS), r.Workload.HighRate, bench.Micros(r.Workload.LowUS), r.Seed)
	if notice := platform(r.Platform).Notice; notice != "" {
		fmt.Fprintln(&b, notice)
	}
	if r.Machine.Scheduling != bench.NormalScheduling {
		fmt.Fprintf(&b, "tenants and virtual GPU run at %s in every mode, to keep CPU contention out of the measurement\n", r.Machine.Scheduling)
	}
	for i := range r.Scenarios {
		s := &r.Scenarios[i]
		fmt.Fprintf(&b, "\n%s\n", s.Name)
		_ = s.table().WriteText(&b, "  ")
		fmt.Fprintf(&b, "  proof: %s\n", s.Proof.line(levelText(s.deep())))
		for _, remark := range r.remarks(s) {
			fmt.Fprintf(&b, "  - %s\n", remark)
		}
	}
	if r.Memory != nil {
		r.Memory.writeText(&b)
	}
	if _, err := io.WriteString(w, b.String()); err != nil {
		return fmt.Errorf("write table: %w", err)
	}
	return nil
}

func (r *Result) deviceText() string {
	if label := platform(r.Platform).Label; label != "" {
		return r.Device + " (" + label + ")"
	}
	return r.Device
}

func (r *Result) machineText() string {
	return r.Machine.String() + r.Date.Format(", 2006-01-02 15:04 MST")
}

// table has a row for each mode.
func (s *Scenario) table() *report.Table {
	t := &report.Table{Left: 1, Head: []string{
		"mode", "P50 ms", "P99 ms", "max ms", "P99/alone", "n", "GPU wait P99", "low kept", "high", "low", "switch", "idle", "preempted",
	}}
	for _, name := range s.modes() {
		m := s.Modes[name]
		row := []string{name, "-", "-", "-", "-", "0", "-", "-", "-", "-", "-", "-", fmt.Sprint(m.Preemptions)}
		if h := m.High; h != nil {
			row[1], row[2], row[3], row[5] = fmt.Sprintf("%.3f", h.P50), fmt.Sprintf("%.3f", h.P99), fmt.Sprintf("%.3f", h.Max), fmt.Sprint(h.N)
			if alone := s.high(ModeAlone); alone != nil && alone.P99 > 0 {
				row[4] = fmt.Sprintf("%.1fx", h.P99/alone.P99)
			}
		}
		if m.Wait != nil {
			row[6] = fmt.Sprintf("%.3f", m.Wait.P99)
		}
		if m.Low != nil {
			row[7] = report.Percent(m.Low.Kept)
		}
		if g := m.GPU; g != nil {
			row[8], row[9], row[10], row[11] = report.Percent(g.High), report.Percent(g.Low), report.Percent(g.Switching), report.Percent(g.Idle)
		}
		t.Add(row...)
	}
	return t
}

// line is the proof in one line.
func (p *Proof) line(level string) string {
	names := make([]string, 0, len(p.Checks))
	for _, c := range p.Checks {
		names = append(names, c.Name)
	}
	return fmt.Sprintf("%d launches = %d kernels, %d hooked calls, %d preemptions in mid-kernel at %s, checksums right (%s)",
		p.Launches, p.ExecutedKernels, p.HookedCalls, p.Preemptions, level, strings.Join(names, ", "))
}

// minSamples is the least number of requests for a meaningful P99.
const minSamples = 300

// noisyAlone is a P99 alone, in ms, above which CPU noise dominates the tail: a request alone needs
// its kernel and two wake-ups.
const noisyAlone = 1.0

// remarks are findings and caveats.
func (r *Result) remarks(s *Scenario) []string {
	var out []string
	alone, native, lv1, lv3 := s.high(ModeAlone), s.high(ModeNative), s.high(ModeLv1), s.high(s.deep())
	if alone != nil && native != nil && lv3 != nil {
		if lv3.P99 < native.P99 {
			out = append(out, fmt.Sprintf("%s reduces the high tenant's P99 from %.2f ms to %.2f ms (alone %.2f ms).",
				levelText(s.deep()), native.P99, lv3.P99, alone.P99))
		} else {
			out = append(out, fmt.Sprintf("%s does not reduce the high tenant's P99 (%.2f ms, native %.2f ms).", levelText(s.deep()), lv3.P99, native.P99))
		}
	}
	// GPU waits, where recorded, exclude CPU noise.
	if a, b := s.wait(ModeNative), s.wait(ModeLv1); a != nil && b != nil {
		native, lv1 = a, b
	}
	if native != nil && lv1 != nil {
		switch {
		case lv1.P99 > 1.1*native.P99:
			out = append(out, fmt.Sprintf("Lv1 is slower than native (%.2f against %.2f ms): it holds launches, but waits for whole kernels of %s.",
				lv1.P99, native.P99, bench.Micros(r.Workload.LowUS)))
		case lv1.P99 > 0.9*native.P99:
			out = append(out, fmt.Sprintf("Lv1 does not improve on native (%.2f against %.2f ms): it holds further launches, but the running kernel still shares the GPU.",
				lv1.P99, native.P99))
		}
	}
	if m := s.Modes[s.deep()]; m != nil && m.Low != nil && m.GPU != nil {
		out = append(out, fmt.Sprintf("At %s the low tenants keep %.1f %% of the throughput of one alone, of at most %.1f %%.",
			levelText(s.deep()), 100*m.Low.Kept, 100*(1-m.GPU.High)))
	}
	if m, n := s.Modes[ModeLv1], s.Modes[ModeNative]; m != nil && n != nil && m.Low != nil && n.Low != nil && m.Low.Kept < n.Low.Kept-0.05 {
		out = append(out, fmt.Sprintf("Lv1 costs the low tenants throughput: they keep %.1f %%, natively %.1f %%.", 100*m.Low.Kept, 100*n.Low.Kept))
	}
	if s.Remaps > 0 {
		out = append(out, fmt.Sprintf("The firmware scheduler remapped the queues of all tenants %d times at %s and interrupted a kernel of the high tenant %d times.",
			s.Remaps, levelText(s.deep()), s.HighStops))
	}
	for _, name := range s.modes() {
		m := s.Modes[name]
		if m.High == nil {
			continue
		}
		if m.High.N < minSamples {
			out = append(out, fmt.Sprintf("%s has only %d requests: its P99 is the sample number %d from the top.", name, m.High.N, 1+m.High.N/100))
		}
		if float64(m.High.N) < 0.97*float64(m.Offered) {
			out = append(out, fmt.Sprintf("%s completed %d of %d requests in the measured time: it is overloaded, and the real tail is longer.", name, m.High.N, m.Offered))
		}
	}
	if n := s.Proof.Recoveries; n > 0 {
		out = append(out, fmt.Sprintf("The daemon missed heartbeats: tenants fell back to native execution %d times, also in the xsched modes.", n))
	}
	if alone != nil && alone.P99 > noisyAlone {
		out = append(out, fmt.Sprintf("CPU noise: even alone the high tenant's P99 is %.2f ms for a kernel of %s; compare the GPU waits instead.",
			alone.P99, bench.Micros(r.Workload.HighUS)))
	}
	if r.Machine.CPUs > 0 && r.Machine.Load > 0.5*float64(r.Machine.CPUs) {
		out = append(out, fmt.Sprintf("The machine was busy before the run (load %.1f on %d cores): tails contain that noise.", r.Machine.Load, r.Machine.CPUs))
	}
	return out
}

func (s *Scenario) high(mode string) *report.Latency {
	if m := s.Modes[mode]; m != nil {
		return m.High
	}
	return nil
}
