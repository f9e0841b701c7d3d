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

// TestHandOver checks the order of a hand-over: the daemon resumes the next queue first and suspends
// the other one after the driver's reply. Both are enabled in between.
func TestHandOver(t *testing.T) {
	s := parse(t, handOvers)
	run := run(t, s, Options{Draw: 2 * time.Second}).Runs[0]
	costs := s.GPU.costs()
	least := costs.Resume.Reply + costs.Resume.ReplyPerChannel - costs.Resume.Effect + costs.Suspend.Effect
	most := least + 2*defaultDispatch + costs.MidSwitch // the suspend may arrive during the context switch
	seen := 0
	ends := map[time.Duration]bool{} // ends of suspensions, of either queue
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
				t.Errorf("at %v the suspend follows the resume by %v, want %v to %v", p.From, overlap, least, most)
			}
			seen++
		}
	}
	if seen < 20 {
		t.Errorf("only %d hand-overs in 2 s", seen)
	}
}

// TestTimeline checks that lanes have no gaps, that one lane at a time has the device, and that the
// chart shows all lanes.
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
			t.Errorf("%d lanes have the device from %v on", n, at)
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
		t.Error("wrote a timeline that was not recorded")
	}
}
