// SPDX-License-Identifier: Apache-2.0

// Package report renders measurements: one page design, one SVG chart renderer, one histogram, one
// text table and one set of statistics. Pages and charts load nothing and run no script, and follow
// the reader's light or dark mode.
package report

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"time"

	"xsched/internal/atomicfile"
)

// Latency summarizes a set of durations, in milliseconds.
type Latency struct {
	P50  float64 `json:"p50_ms"`
	P95  float64 `json:"p95_ms"`
	P99  float64 `json:"p99_ms"`
	Max  float64 `json:"max_ms"`
	Mean float64 `json:"mean_ms"`
	N    int     `json:"n"`
}

// Summarize sorts d in place and returns exact percentiles; nil without samples.
func Summarize(d []time.Duration) *Latency {
	if len(d) == 0 {
		return nil
	}
	slices.Sort(d)
	var sum time.Duration
	for _, v := range d {
		sum += v
	}
	return &Latency{
		P50: MS(Quantile(d, 0.50)), P95: MS(Quantile(d, 0.95)), P99: MS(Quantile(d, 0.99)),
		Max: MS(d[len(d)-1]), Mean: MS(sum) / float64(len(d)), N: len(d),
	}
}

// Quantile returns the nearest-rank quantile of sorted samples: the smallest sample that at least
// the fraction q of all samples does not exceed. It returns 0 without samples.
func Quantile[T any](sorted []T, q float64) (v T) {
	if len(sorted) == 0 {
		return v
	}
	// The epsilon keeps 0.99*100 from becoming 99.00000000000001.
	rank := int(math.Ceil(q*float64(len(sorted)) - 1e-9))
	return sorted[min(max(rank, 1), len(sorted))-1]
}

// MS converts a duration to milliseconds.
func MS(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// WriteJSON writes v indented.
func WriteJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	if err := enc.Encode(v); err != nil {
		return fmt.Errorf("write JSON: %w", err)
	}
	return nil
}

// Save writes files into dir. Each file appears complete or not at all.
func Save(dir string, files map[string]func(io.Writer) error) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("create output directory: %w", err)
	}
	for name, write := range files {
		if err := atomicfile.Write(filepath.Join(dir, name), 0o644, write); err != nil {
			return err
		}
	}
	return nil
}
