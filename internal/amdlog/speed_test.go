// SPDX-License-Identifier: Apache-2.0

package amdlog

import (
	"os"
	"testing"
)

// BenchmarkRead reads the log in XSCHED_AMDLOG, for example one of
// tools/amdloggen.
func BenchmarkRead(b *testing.B) {
	name := os.Getenv("XSCHED_AMDLOG")
	if name == "" {
		b.Skip("XSCHED_AMDLOG names no log")
	}
	lines := uint64(0)
	for b.Loop() {
		f, err := os.Open(name)
		if err != nil {
			b.Fatal(err)
		}
		l, err := Read(b.Context(), f, Options{Name: name})
		if err != nil {
			b.Fatal(err)
		}
		f.Close()
		b.SetBytes(l.Bytes)
		lines += l.Lines.Total
	}
	b.ReportMetric(float64(lines)/b.Elapsed().Seconds(), "lines/s")
}
