// SPDX-License-Identifier: Apache-2.0

package gpumodel

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"xsched/internal/model"
)

// recorder is a Sink that checks invariants as work executes.
type recorder struct {
	fail      func(string, ...any)
	name      string
	submitted uint64
	completed uint64
	block     int // next block of the kernel at the head
	ran       time.Duration
	last      model.Time
}

func (r *recorder) Blocks(w *Work, from, to int) {
	if w.Seq != r.completed+1 {
		r.fail("%s: blocks of %d while %d was completed last", r.name, w.Seq, r.completed)
	}
	if from != r.block || to <= from {
		r.fail("%s: blocks %d..%d, expected from %d", r.name, from, to, r.block)
	}
	r.block = to
}
func (r *recorder) CopyStart(*Work)      {}
func (r *recorder) CopyReady(*Work) bool { return true }
func (r *recorder) Reached(*Work) bool   { return true }
func (r *recorder) Done(w *Work, at model.Time) {
	if w.Seq != r.completed+1 {
		r.fail("%s: %d completed after %d", r.name, w.Seq, r.completed)
	}
	if at < r.last {
		r.fail("%s: completed at %d after %d", r.name, at, r.last)
	}
	if w.Kind == WorkKernel {
		if want := w.blocks(DefaultCosts().Block); r.block != want {
			r.fail("%s: %d of %d blocks executed", r.name, r.block, want)
		}
		r.ran += w.Duration
	}
	r.block, r.completed, r.last = 0, w.Seq, at
}

// Under random submissions, suspends, resumes and timeslices, every channel executes its work in
// order, every block once, and device time is fully accounted for.
func TestNothingLostOrRepeated(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		g := NewGPU(0, DefaultCosts(), NewTimeline(0), nil)
		account := &Account{}
		var groups []*Group
		var channels []*Channel
		var records []*recorder
		lane := g.AddGroup(account, true)
		laneChannel := g.AddChannel(lane, discard{})
		g.Schedule(lane)
		for i := range rapid.IntRange(1, 4).Draw(t, "groups") {
			group := g.AddGroup(account, false)
			groups = append(groups, group)
			for j := range rapid.IntRange(1, 3).Draw(t, "channels") {
				r := &recorder{fail: t.Fatalf, name: fmt.Sprintf("group %d channel %d", i, j)}
				c := g.AddChannel(group, r)
				c.SetLanes([]*Group{lane})
				channels, records = append(channels, c), append(records, r)
			}
			g.Schedule(group)
		}
		all := append([]*Channel{laneChannel}, channels...)
		var now model.Time
		t.Repeat(map[string]func(*rapid.T){
			"wait": func(t *rapid.T) {
				now = now.Add(time.Duration(rapid.Int64Range(0, 5e6).Draw(t, "ns")))
				g.Advance(now)
			},
			"submit": func(t *rapid.T) {
				i := rapid.IntRange(0, len(channels)-1).Draw(t, "channel")
				r := records[i]
				r.submitted++
				w := Work{Seq: r.submitted, Kind: WorkKind(rapid.IntRange(1, 5).Draw(t, "kind"))}
				switch w.Kind {
				case WorkKernel:
					w.Duration = time.Duration(rapid.Int64Range(1e3, 4e6).Draw(t, "duration"))
				case WorkCopy, WorkFill:
					w.Bytes = rapid.Int64Range(0, 1e8).Draw(t, "bytes")
				case WorkWait: // for something submitted before, as streams do
					on := rapid.IntRange(0, len(channels)-1).Draw(t, "on")
					w.On, w.OnSeq = channels[on], records[on].submitted
					if on == i {
						w.OnSeq--
					}
				case WorkMark:
				}
				g.Submit(channels[i], w)
			},
			"slice": func(t *rapid.T) {
				group := rapid.SampledFrom(groups).Draw(t, "group")
				g.SetSlice(group, time.Duration(rapid.Int64Range(1, 9000).Draw(t, "us"))*us, nil)
			},
			"disable": func(t *rapid.T) {
				c := rapid.SampledFrom(all).Draw(t, "channel")
				g.Disable([]*Channel{c}, rapid.Bool().Draw(t, "disable"), rapid.Bool().Draw(t, "only scheduling"), nil)
			},
			"preempt": func(t *rapid.T) { g.Preempt(rapid.SampledFrom(groups).Draw(t, "group")) },
			"": func(t *rapid.T) {
				sum := g.totals.RunNS + g.totals.SwitchNS + g.totals.IdleNS
				if sum != int64(now) {
					t.Fatalf("run %d + switch %d + idle %d is not %d", g.totals.RunNS, g.totals.SwitchNS, g.totals.IdleNS, now)
				}
			},
		})
		// Let all work complete: enable all channels, with slices long enough to progress.
		for _, c := range all {
			for range c.disables {
				g.Disable([]*Channel{c}, false, false, nil)
			}
		}
		now = now.Add(time.Minute) // pending disables take effect
		g.Advance(now)
		for _, c := range all {
			for range c.disables {
				g.Disable([]*Channel{c}, false, false, nil)
			}
		}
		g.Disable(all, true, false, nil)
		g.Disable(all, false, false, nil)
		for _, group := range groups {
			g.SetSlice(group, 2048*us, nil)
		}
		now = now.Add(time.Minute)
		g.Advance(now)
		var ran time.Duration
		for i, r := range records {
			if r.completed != r.submitted || channels[i].Pending() != 0 {
				t.Fatalf("%s: %d of %d completed", r.name, r.completed, r.submitted)
			}
			ran += r.ran
		}
		if int64(ran) != g.totals.RunNS {
			t.Fatalf("kernels of %v ran for %v", ran, time.Duration(g.totals.RunNS))
		}
		checkTimeline(t, g, now)
	})
}

// checkTimeline checks that the spans cover the time from the start to now.
func checkTimeline(t *rapid.T, g *GPU, now model.Time) {
	var at int64
	sums := map[Kind]int64{}
	for _, s := range g.timeline.Spans(0, now) {
		if s.T0 != at || s.T1 <= s.T0 {
			t.Fatalf("span %+v after %d", s, at)
		}
		at = s.T1
		sums[s.Kind] += s.T1 - s.T0
	}
	if at != int64(now) {
		t.Fatalf("timeline ends at %d, not %d", at, now)
	}
	if sums[KindRun] != g.totals.RunNS || sums[KindSwitch] != g.totals.SwitchNS || sums[KindIdle] != g.totals.IdleNS {
		t.Fatalf("timeline %v, totals %+v", sums, g.totals)
	}
}

// Removing groups and channels at any time does not affect the others.
func TestRemoval(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		g := NewGPU(0, DefaultCosts(), nil, nil)
		var groups []*Group
		var now model.Time
		t.Repeat(map[string]func(*rapid.T){
			"add": func(t *rapid.T) {
				group := g.AddGroup(&Account{}, false)
				for range 3 {
					c := g.AddChannel(group, discard{})
					for seq := range uint64(3) {
						g.Submit(c, Work{Kind: WorkKernel, Seq: seq + 1, Duration: time.Duration(rapid.Int64Range(1e3, 9e6).Draw(t, "ns"))})
					}
				}
				g.Schedule(group)
				groups = append(groups, group)
			},
			"remove": func(t *rapid.T) {
				if len(groups) == 0 {
					return
				}
				i := rapid.IntRange(0, len(groups)-1).Draw(t, "group")
				g.RemoveGroup(groups[i])
				groups = append(groups[:i], groups[i+1:]...)
			},
			"remove channel": func(t *rapid.T) {
				if len(groups) == 0 {
					return
				}
				if group := rapid.SampledFrom(groups).Draw(t, "group"); len(group.channels) > 0 {
					g.RemoveChannel(rapid.SampledFrom(group.channels).Draw(t, "channel"))
				}
			},
			"wait": func(t *rapid.T) {
				now = now.Add(time.Duration(rapid.Int64Range(0, 5e6).Draw(t, "ns")))
				g.Advance(now)
			},
			"": func(t *rapid.T) {
				ready := 0
				for _, group := range groups {
					if group.ready {
						ready++
					}
				}
				if ready != g.runnable || len(groups) != len(g.runlist) {
					t.Fatalf("%d groups, %d runnable; device says %d, %d", len(groups), ready, len(g.runlist), g.runnable)
				}
			},
		})
		now = now.Add(time.Minute)
		g.Advance(now)
		if g.phase != phaseIdle {
			t.Fatalf("phase %d after everything should be done", g.phase)
		}
	})
}
