// SPDX-License-Identifier: Apache-2.0

package gang

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"
)

const ms = int64(time.Millisecond)

// at is a moment of a node whose clock is right.
func at(t int64) Moment { return Moment{Wall: 1e18 + t*ms, Mono: t * ms} }

// commit writes what the machine wants to have written.
func commit(t *testing.T, m *Machine, now int64, version string) Record {
	t.Helper()
	r, ok, wait := m.Write(at(now))
	if !ok {
		t.Fatalf("at %d: nothing to write, wait %v", now, wait)
	}
	r.Version = version
	m.Wrote(at(now), r, nil)
	return r
}

func quiet(t *testing.T, m *Machine, now int64) time.Duration {
	t.Helper()
	r, ok, wait := m.Write(at(now))
	if ok {
		t.Fatalf("at %d: wrote %+v", now, r)
	}
	return wait
}

// TestAskAndRelease follows one hold on two nodes from the ask to the end.
func TestAskAndRelease(t *testing.T) {
	a, b := New(Default(), "a"), New(Default(), "b")
	quiet(t, a, 0) // nothing is known
	a.Observe(at(0), Record{})
	b.Observe(at(0), Record{})
	quiet(t, a, 0)
	a.Need(true, -10)
	r := commit(t, a, 10, "1")
	b.Observe(at(40), r)
	for _, m := range []*Machine{a, b} {
		if m.Held(at(159)) || !m.Held(at(160)) || !m.Held(at(4009)) || m.Held(at(4010)) {
			t.Errorf("%s: %+v", m.node, m.Holds(at(40)))
		}
		if h := m.Holds(at(40)); len(h) != 1 || h[0].Priority != -10 {
			t.Errorf("%s: %+v", m.node, h)
		}
	}
	if wait := quiet(t, a, 100); wait != 1910*time.Millisecond { // half of the TTL
		t.Errorf("renews after %v", wait)
	}
	r = commit(t, a, 2010, "2")
	b.Observe(at(2020), r)
	if !b.Held(at(6009)) || b.Held(at(6010)) {
		t.Errorf("renewed: %+v", b.Holds(at(2020)))
	}
	a.Need(false, 0)
	if wait := quiet(t, a, 2100); wait != 160*time.Millisecond { // the gap
		t.Errorf("releases after %v", wait)
	}
	r = commit(t, a, 2260, "3")
	b.Observe(at(2300), r)
	for _, m := range []*Machine{a, b} {
		if !m.Held(at(2409)) || m.Held(at(2410)) {
			t.Errorf("%s after the release: %+v", m.node, m.Holds(at(2300)))
		}
		if s := m.Stats(); s.Late != 0 || s.Ahead != 0 {
			t.Errorf("%s: %+v", m.node, s)
		}
	}
	// The group runs for a second at least.
	b.Need(true, -10)
	if wait := quiet(t, b, 2600); wait != 660*time.Millisecond {
		t.Errorf("asks again after %v", wait)
	}
	r = commit(t, b, 3260, "4")
	if len(r.Asks) != 2 || r.Since != at(3410).Wall {
		t.Errorf("%+v", r)
	}
}

// TestSecondAsker checks that a second node joins a hold, so that the group does not run in between.
func TestSecondAsker(t *testing.T) {
	a, b := New(Default(), "a"), New(Default(), "b")
	a.Observe(at(0), Record{})
	b.Observe(at(0), Record{})
	a.Need(true, -10)
	b.Need(true, -20)
	// Both decide at once; the API server takes one.
	lost, _, _ := b.Write(at(10))
	r := commit(t, a, 10, "1")
	b.Wrote(at(15), lost, errors.New("conflict"))
	b.Observe(at(20), r)
	quiet(t, b, 100)
	r = commit(t, b, 520, "2") // the gap and the longest jitter later
	a.Observe(at(530), r)
	a.Need(false, 0)
	r = commit(t, a, 800, "3")
	b.Observe(at(810), r)
	if !a.Held(at(2000)) || !b.Held(at(2000)) || len(a.Holds(at(2000))) != 1 || a.Holds(at(2000))[0].Priority != -20 {
		t.Errorf("after the first has gone: %+v", a.Holds(at(2000)))
	}
}

// TestLongestHold checks that no number of renewals by several nodes holds a group longer than MaxHold.
func TestLongestHold(t *testing.T) {
	c := Default()
	a, b := New(c, "a"), New(c, "b")
	r, version := Record{}, byte('a')
	var free int64
	held := int64(0)
	for now := int64(0); now < 40_000; now += 10 {
		for _, m := range []*Machine{a, b} {
			m.Need(true, 0)
			m.Observe(at(now), r)
			if w, ok, _ := m.Write(at(now)); ok {
				if now < free {
					t.Fatalf("two writes within the gap at %d", now)
				}
				version++
				w.Version = string(version)
				m.Wrote(at(now), w, nil)
				r, free = w, now+c.Gap.Milliseconds()
			}
		}
		if a.Held(at(now)) {
			held += 10
		} else if held > 0 {
			break
		}
	}
	if held != c.MaxHold.Milliseconds() {
		t.Errorf("held for %d ms", held)
	}
}

// TestClocks checks asks of nodes whose clocks are wrong, and of an old record.
func TestClocks(t *testing.T) {
	c := Default()
	now := at(1_000_000)
	ask := func(ahead int64) Record {
		w := now.Wall + ahead*ms
		return Record{Version: "1", Since: w + 150*ms, Asks: []Ask{{Node: "x", Wrote: w, From: w + 150*ms, Until: w + 4000*ms}}}
	}
	for name, test := range map[string]struct {
		ahead       int64
		from, until int64 // ms from now; equal: not held
		late, early uint64
	}{
		"right":         {0, 150, 4000, 0, 0},
		"slow delivery": {-170, -20, 3830, 1, 0},
		"ahead":         {100, 250, 4000, 0, 1},
		"far ahead":     {3_600_000, 0, 0, 0, 1},
		"behind":        {-1000, -850, 3000, 1, 0},
		"far behind":    {-3_600_000, 0, 0, 0, 0},
		"stale":         {-5000, 0, 0, 0, 0},
	} {
		m := New(c, "n")
		m.Observe(now, ask(test.ahead))
		h := m.Holds(now)
		if len(h) == 0 {
			h = []Hold{{From: now.Mono, Until: now.Mono}}
		}
		if from, until := (h[0].From-now.Mono)/ms, (h[0].Until-now.Mono)/ms; from != test.from || until != test.until {
			t.Errorf("%s: from %d until %d", name, from, until)
		}
		if s := m.Stats(); s.Late != test.late || s.Ahead != test.early {
			t.Errorf("%s: %+v", name, s)
		}
	}
	// A step of the own clock changes nothing about what is held.
	m := New(c, "n")
	m.Observe(now, ask(0))
	r := ask(0)
	r.Version = "2"
	m.Observe(Moment{Wall: now.Wall - int64(time.Hour), Mono: now.Mono + 1000*ms}, r)
	if h := m.Holds(now); len(h) != 1 || h[0].Until != now.Mono+4000*ms {
		t.Errorf("after a step: %+v", h)
	}
	// A clock far ahead does not keep others from asking.
	m.Need(true, 0)
	m.Observe(now, func() Record { r := ask(3_600_000); r.Version = "3"; return r }())
	if w, ok, wait := m.Write(now.After(c.Gap)); !ok || len(w.Asks) != 1 || w.Asks[0].Node != "n" {
		t.Errorf("%+v, %v", w, wait)
	}
}

// TestOperator checks suspend and resume by hand.
func TestOperator(t *testing.T) {
	c := Default()
	m := New(c, "n")
	m.Observe(at(0), Record{})
	m.Need(true, -5)
	r := commit(t, m, 0, "1")
	m.Observe(at(10), r)
	r = c.Suspend(r, at(1000).Wall, 10*time.Minute)
	r.Version = "2"
	m.Observe(at(1010), r)
	m.Need(false, 0)
	r = commit(t, m, 1300, "3")
	m.Observe(at(1310), r)
	if !m.Held(at(600_000)) || m.Held(at(601_150)) {
		t.Errorf("suspended: %+v", m.Holds(at(1300)))
	}
	m.Need(true, -5)
	if wait := quiet(t, m, 100_000); wait <= 0 { // longer than nodes may ask for
		t.Errorf("wait %v", wait)
	}
	r = c.Resume(r, at(200_000).Wall)
	r.Version = "4"
	m.Observe(at(200_010), r)
	if !m.Held(at(200_149)) || m.Held(at(200_150)) {
		t.Errorf("resumed: %+v", m.Holds(at(200_010)))
	}
	if wait := quiet(t, m, 200_500); wait != 500*time.Millisecond {
		t.Errorf("asks again after %v", wait)
	}
}

// TestSlowServer checks that a node leaves more time when the watch shows its writes late.
func TestSlowServer(t *testing.T) {
	m := New(Default(), "n")
	m.Observe(at(0), Record{})
	m.Need(true, 0)
	r := commit(t, m, 0, "1")
	m.Observe(at(200), r)
	if m.lead() != 400*time.Millisecond {
		t.Errorf("lead %v", m.lead())
	}
	m.Need(false, 0)
	if r = commit(t, m, 1000, "2"); r.end() != at(1400).Wall {
		t.Errorf("%+v", r)
	}
	m.Observe(at(9000), r)
	if m.lead() != Default().MaxLead {
		t.Errorf("lead %v", m.lead())
	}
}

// TestLongestSuspension checks that a record can't suspend a group for longer than an operator may, whenever
// it is seen, and that nodes can ask again afterwards.
func TestLongestSuspension(t *testing.T) {
	const day = int64(24 * time.Hour / time.Millisecond)
	r := Default().Suspend(Record{}, at(0).Wall, 10*365*24*time.Hour)
	r.Version = "1"
	for _, seen := range []int64{0, day / 2, day - 1000} {
		m := New(Default(), "n")
		m.Observe(at(seen), r)
		if !m.Held(at(seen+200)) || m.Held(at(day+2000)) {
			t.Errorf("seen at %d: %+v", seen, m.Holds(at(seen)))
		}
		m.Need(true, 0)
		if _, ok, wait := m.Write(at(day + 10_000)); !ok {
			t.Errorf("seen at %d: nobody can ask, wait %v", seen, wait)
		}
	}
}

// TestMerge checks that the asks of many nodes make few holds with the same effect.
func TestMerge(t *testing.T) {
	now := at(1000)
	var r Record
	for i := range maxAsks {
		r.Asks = append(r.Asks, Ask{Node: fmt.Sprint("n", i), Priority: int32(-10 - i%2), Wrote: at(int64(i)).Wall, From: at(int64(i + 150)).Wall, Until: at(int64(i + 4000)).Wall})
	}
	r.Version, r.Since = "1", at(150).Wall
	m := New(Default(), "n")
	m.Observe(now, r)
	got := m.Holds(now)
	want := []Hold{{-10, at(150).Mono, at(4062).Mono}, {-11, at(213).Mono, at(4063).Mono}}
	if !slices.Equal(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
	// A hold that ends later, and one of a higher priority that begins later, are not covered.
	for name, c := range map[string]struct{ all, want []Hold }{
		"covered":     {[]Hold{{-20, 500 * ms, 2000 * ms}, {-10, 900 * ms, 2000 * ms}}, []Hold{{-10, 900 * ms, 2000 * ms}}},
		"ends later":  {[]Hold{{-20, 500 * ms, 2001 * ms}, {-10, 900 * ms, 2000 * ms}}, []Hold{{-10, 900 * ms, 2000 * ms}, {-20, 500 * ms, 2001 * ms}}},
		"not yet":     {[]Hold{{-20, 500 * ms, 2000 * ms}, {-10, 1001 * ms, 3000 * ms}}, []Hold{{-10, 1001 * ms, 3000 * ms}, {-20, 500 * ms, 2000 * ms}}},
		"with a rest": {[]Hold{{-10, 500 * ms, 1500 * ms}, {-10, 1501 * ms, 2000 * ms}}, []Hold{{-10, 500 * ms, 1500 * ms}, {-10, 1501 * ms, 2000 * ms}}},
	} {
		if got := merge(now, c.all); !slices.Equal(got, c.want) {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

// TestManyAskers runs a job of many nodes that all need a hold. Few of them write, so few writes fail, and the
// group is held without a pause until the last one has its time.
func TestManyAskers(t *testing.T) {
	const nodes, slow = 60, 10 // ms until a write is seen
	var all []*Machine
	for i := range nodes {
		m := New(Default(), fmt.Sprint("n", i))
		m.Observe(at(0), Record{})
		m.Need(true, -10)
		all = append(all, m)
	}
	type write struct {
		m  *Machine
		at int64
		r  Record
	}
	var record Record
	var under []write
	writes, failed, held := 0, 0, int64(0)
	for now := range int64(20_000) {
		for len(under) > 0 && under[0].at == now {
			w := under[0]
			under = under[1:]
			if w.r.Version != record.Version {
				failed++
				w.m.Wrote(at(now), w.r, errors.New("conflict"))
				continue
			}
			writes++
			w.r.Version = fmt.Sprint(writes)
			record = w.r
			w.m.Wrote(at(now), w.r, nil)
			for _, m := range all {
				m.Observe(at(now), record)
			}
		}
		for _, m := range all {
			if r, ok, _ := m.Write(at(now)); ok {
				under = append(under, write{m, now + slow, r})
			}
		}
		if all[0].Held(at(now)) {
			held++
		} else if held > 0 {
			t.Fatalf("not held at %d: %+v", now, record)
		}
	}
	// Three nodes renew every two seconds. At the start all nodes write at once.
	if writes > 40 || failed > 3*nodes {
		t.Errorf("%d writes, %d failed", writes, failed)
	}
	t.Logf("%d writes, %d failed, %d nodes ask", writes, failed, len(record.Asks))
}
