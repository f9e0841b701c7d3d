// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"xsched/internal/report"
)

const handOvers = `
name: hand-overs
duration: 3s
warmup: 0s
tenants:
  - {name: high, hint: {priority: 10}, arrivals: {rate: 20}, kernel: 90us}
  - {name: low, count: 2, arrivals: {closed: {depth: 2}}, kernel: 20ms}
`

// TestHandOver: as the daemon does it, who gets the GPU is let go first, and who has to leave is stopped only when the
// driver has answered that; so both are enabled from the one's effect to the other's.
func TestHandOver(t *testing.T) {
	s := parse(t, handOvers)
	run := run(t, s, Options{Draw: 2 * time.Second}).Runs[0]
	costs := s.GPU.costs()
	least := costs.Resume.Reply - costs.Resume.Effect + costs.Suspend.Effect
	most := least + 2*defaultDispatch + costs.MidSwitch // it may be on its way in when the stop comes
	seen := 0
	ends := map[time.Duration]bool{} // of stops, of either
	for _, l := range run.tracks[1:] {
		for i := 1; i < len(l.Pieces); i++ {
			if l.Pieces[i-1].State == report.Suspended {
				ends[l.Pieces[i].From] = true
			}
		}
	}
	for _, l := range run.tracks[1:] {
		for i, p := range l.Pieces {
			if p.State != report.Suspended || p.From < 100*time.Millisecond || i == 0 {
				continue
			}
			overlap := time.Duration(-1)
			for end := range ends {
				if d := p.From - end; d >= 0 && d < time.Millisecond {
					overlap = d
				}
			}
			if overlap < least || overlap > most {
				t.Errorf("at %v one is stopped %v after the other was let go, not %v to %v", p.From, overlap, least, most)
			}
			seen++
		}
	}
	if seen < 20 {
		t.Errorf("only %d hand-overs in 2 s", seen)
	}
}

// TestTimeline: lanes have no gaps, only one has the device at a time, and the picture shows all of them.
func TestTimeline(t *testing.T) {
	s := parse(t, handOvers)
	const draw = 500 * time.Millisecond
	res := run(t, s, Options{Draw: draw})
	running := map[time.Duration]int{}
	for _, l := range res.Runs[0].tracks {
		at := time.Duration(0)
		for _, p := range l.Pieces {
			if p.From != at || p.To <= p.From {
				t.Fatalf("%s: a gap from %v to %v", l.Name, at, p.From)
			}
			at = p.To
			if p.State == report.Running {
				running[p.From]++
			}
		}
		if at != draw {
			t.Errorf("%s ends at %v", l.Name, at)
		}
	}
	for at, n := range running {
		if n > 1 {
			t.Errorf("%d have the device from %v on", n, at)
		}
	}
	var b bytes.Buffer
	if err := res.WriteTimeline(&b); err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{">high</text>", ">priority 10</text>", ">low</text>", `class="stop"`, `class="switch"`, `class="wait"`, ">500 ms</text>", `class="arrival"`} {
		if !strings.Contains(b.String(), part) {
			t.Errorf("no %q in the picture", part)
		}
	}
	if err := (&Result{Runs: []RunResult{{}}}).WriteTimeline(&b); err == nil {
		t.Error("nothing was drawn, and it is shown")
	}
}
