// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"xsched/internal/driver"
	"xsched/internal/model"
)

type page struct{ log []string }

func (p *page) SetGate(slot int, state uint32) {
	p.log = append(p.log, fmt.Sprint("gate ", slot, " ", state))
}

func (p *page) SetLimits(slot int, in, batch uint32) {
	p.log = append(p.log, fmt.Sprint("limits ", slot, in, batch))
}

func TestGate(t *testing.T) {
	p, m := &page{}, &driver.Metrics{}
	g := New(p, 3, m)
	for _, want := range []model.Desired{
		{},
		{},
		{Suspend: model.LevelBlock, InFlight: 4, Batch: 2},
		{Suspend: model.LevelBlock, InFlight: 4, Batch: 2},
		{Suspend: model.LevelInterrupt, InFlight: -1, Batch: 1 << 40}, // left to the hardware
		{Gather: 54},
		{Gather: 54, Suspend: model.LevelBlock}, // a held queue gathers nothing
	} {
		if err := g.Apply(context.Background(), want); err != nil {
			t.Fatal(err)
		}
	}
	_ = g.Close()
	want := []string{
		"limits 3 0 0", "gate 3 0", "limits 3 4 2", "gate 3 1", "limits 3 0 1048576", "gate 3 0",
		"limits 3 0 0", "gate 3 13826", "gate 3 1", "limits 3 0 0", "gate 3 0",
	}
	if !slices.Equal(p.log, want) {
		t.Errorf("got %q\nwant %q", p.log, want)
	}
	if m.GateHolds.Load() != 2 {
		t.Error("holds not counted")
	}
}
