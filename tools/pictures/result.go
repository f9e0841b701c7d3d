// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"xsched/internal/report"
)

// gpuRun is one run of test/gpu/run.sh, as far as the chart needs it.
type gpuRun struct {
	Suites map[string]struct {
		Status    string
		Scenarios []gpuScenario
	}
}

type gpuScenario struct {
	Name  string
	Noise struct {
		P99 []float64 `json:"p99_ms"` // of the alone blocks, least and most
	}
	Modes map[string]struct {
		Ratio float64 `json:"p99_to_alone"`
		Low   *struct{ Kept float64 }
	}
}

// usable reports whether the suite proved its numbers and the scenario has both modes.
func (s *gpuScenario) usable(status string) bool {
	return (status == "OK" || status == "MISSED") && s.Modes["native"].Low != nil && s.Modes["live"].Low != nil
}

// noisy reports that the alone blocks differ so much that ratios to them are unreliable, as test/gpu/shown.py does.
func (s *gpuScenario) noisy() bool {
	return len(s.Noise.P99) == 2 && s.Noise.P99[1] > 1.5*s.Noise.P99[0]
}

// result draws the P99 of the main H200 scenarios relative to alone and the throughput that the jobs keep. It shows the
// runs of the table in README.md: no run is selected by its result.
func result(root string, out map[string][]byte) error {
	f, err := os.Open(filepath.Join(root, "docs/results/h200.json.gz"))
	if err != nil {
		return fmt.Errorf("read measurements: %w", err)
	}
	defer func() { _ = f.Close() }()
	z, err := gzip.NewReader(f)
	if err != nil {
		return fmt.Errorf("read measurements: %w", err)
	}
	var runs []gpuRun
	if err := json.NewDecoder(z).Decode(&runs); err != nil {
		return fmt.Errorf("read measurements: %w", err)
	}
	var rows []report.Row
	for _, want := range []struct{ name, group string }{
		{"micro/1 low", "90 us kernels, 100/s\nbeside 1 x 20 ms kernels"},
		{"micro/3 lows", "90 us kernels, 100/s\nbeside 3 x 20 ms kernels"},
		{"gpubound", "ResNet-50 b64, 20/s\nbeside ResNet-50 b1024"},
		{"tenants", "ResNet-18 b1, 20/s\nbeside 3 training jobs"},
		{"test4", "ResNet-18 b1, 20/s\nbeside ResNet-50 b1024"},
	} {
		found, number := newest(runs, want.name)
		if found == nil {
			return fmt.Errorf("docs/results/h200.json.gz has no run of %s", want.name)
		}
		for i, mode := range []string{"native", "live"} {
			m := found.Modes[mode]
			class := fmt.Sprintf("c%d", 1-i)
			rows = append(rows, report.Row{
				Group: want.group, Name: []string{"native", "XSched"}[i],
				Note:  fmt.Sprintf("jobs keep %s (run %d)", report.Percent(m.Low.Kept), number),
				Parts: []report.Part{{Value: m.Ratio, Class: class, Name: mode}},
			})
		}
	}
	chart := report.Bars("P99", "P99 latency of the service, relative to running alone (log)", 0.5, 40, true, func(v float64) string {
		if v == 1 {
			return "1× = alone"
		}
		return report.Plain(v) + "×"
	}, rows)
	var b bytes.Buffer
	err = report.WriteSVG(&b, "NVIDIA H200: tail latency of a service that shares the GPU",
		"The later of two runs whose alone was steady. Intervals, noise and all runs: docs/results/h200.md", chart)
	out["docs/result.svg"] = b.Bytes()
	return err
}

// newest returns a scenario of the last of two runs in which it is usable and its alone blocks are steady, otherwise of
// the last one, and the number of that run.
func newest(runs []gpuRun, name string) (last *gpuScenario, number int) {
	for at, run := range slices.Backward(runs) {
		for _, suite := range run.Suites {
			for i := range suite.Scenarios {
				s := &suite.Scenarios[i]
				switch {
				case s.Name != name || !s.usable(suite.Status):
				case last == nil && s.noisy():
					last, number = s, at+1
				case last == nil || !s.noisy():
					return s, at + 1
				default:
					return last, number
				}
			}
		}
	}
	return last, number
}
