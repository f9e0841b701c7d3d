// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"xsched/internal/bench"
	"xsched/internal/bench/benchtest"
	"xsched/internal/model"
	"xsched/internal/report"
	"xsched/internal/virtual"
)

func TestMemoryScene(t *testing.T) {
	for _, platform := range virtual.Names() {
		t.Run(platform, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			m, err := runMemory(ctx, &CompareOptions{Platform: platform, Exe: benchtest.Program(t)})
			if err != nil {
				t.Fatal(err)
			}
			var text, page bytes.Buffer
			m.writeText(&text)
			t.Logf("%s", text.String())
			p := &report.Page{Title: "memory"}
			m.addTo(p)
			if err := p.Write(&page); err != nil {
				t.Fatal(err)
			}
			for _, want := range []string{"can&#39;t start", "of the job left for the service", "memory and results are right"} {
				if !strings.Contains(page.String(), want) {
					t.Errorf("the page lacks %q", want)
				}
			}
			if m.OutBytes < memoryHeld*2-memoryCapacity || model.Bytes(m.Back.MovedBytes) != m.OutBytes {
				t.Errorf("%v left in %d moves, returned: %+v", m.OutBytes, m.OutMoves, m.Back)
			}
		})
	}
}

// TestLongMemorySceneNoticesAnInertShim: without the library nothing moves, and nothing is printed.
func TestLongMemorySceneNoticesAnInertShim(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	m, err := runMemory(ctx, &CompareOptions{Platform: virtual.Default().Name, Exe: benchtest.Program(t), Fault: bench.FaultShimInert})
	if m != nil || !errors.Is(err, bench.ErrProof) {
		t.Errorf("got %+v, %v", m, err)
	}
}

func TestMemoryChecksCanFail(t *testing.T) {
	good := func() *memoryEvidence {
		return &memoryEvidence{
			native: errors.New("service: cuMemAlloc_v2 failed: 2"), left: 90 << 20, out: 1, back: 1, requests: 50,
			results: map[string]error{"service": nil, "job": nil},
		}
	}
	if err := bench.Failure(memoryScene, good().checks()); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		want  string
		spoil func(*memoryEvidence)
	}{
		{"natively out of memory", func(e *memoryEvidence) { e.native = nil }},
		{"natively out of memory", func(e *memoryEvidence) { e.native = errors.New("no such file") }},
		{"memory left and returned", func(e *memoryEvidence) { e.left = memoryHeld }},
		{"memory left and returned", func(e *memoryEvidence) { e.left = 0 }},
		{"memory left and returned", func(e *memoryEvidence) { e.out = 0 }},
		{"memory left and returned", func(e *memoryEvidence) { e.back = 0 }},
		{"nothing ran without memory", func(e *memoryEvidence) { e.waited = 1 }},
		{"nothing ran without memory", func(e *memoryEvidence) { e.requests = 0 }},
		{"memory and results are right", func(e *memoryEvidence) { e.results["job"] = errors.New("wrong result") }},
	} {
		e := good()
		c.spoil(e)
		if err := bench.Failure(memoryScene, e.checks()); !errors.Is(err, bench.ErrProof) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("got %v, want %q", err, c.want)
		}
	}
}
