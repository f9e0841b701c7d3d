// SPDX-License-Identifier: Apache-2.0

package model

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestCopies(t *testing.T) {
	const ms = Time(time.Millisecond)
	type seen struct {
		at               Time
		launches, copies uint64
		busy             bool
		only, ask        bool
	}
	for _, c := range []struct {
		name string
		seen []seen
	}{
		{"copies only, and waits for each", []seen{
			{0, 0, 0, true, false, false},
			{ms, 0, 1, false, true, true},
			{2 * ms, 0, 2, true, true, true},
			{9000 * ms, 0, 900, true, true, true},
		}},
		{"copies without an end", []seen{
			{0, 0, 0, true, false, false},
			{20 * ms, 0, 40, true, false, true},
			{30 * ms, 0, 60, true, false, true},
			{40 * ms, 0, 80, true, true, true},
		}},
		{"launches while it is looked at", []seen{
			{20 * ms, 0, 40, true, false, true},
			{30 * ms, 1, 60, true, false, false},
			{500 * ms, 1, 90, true, false, false},
		}},
		{"loads a model, then computes", []seen{
			{ms, 0, 9, false, true, true},
			{3000 * ms, 0, 900, true, true, true},
			{3001 * ms, 1, 900, true, false, false},
		}},
		{"trains: each iteration copies first", []seen{
			{ms, 0, 1, false, true, true},
			{2 * ms, 1, 1, true, false, false},
			{100 * ms, 50, 1, false, false, false},
			{101 * ms, 50, 2, false, false, false},
			{200 * ms, 100, 2, false, false, false},
			{201 * ms, 100, 3, false, false, false},
		}},
		{"computed a while ago", []seen{
			{ms, 7, 1, false, false, false},
			{600 * ms, 7, 1, false, false, false}, // no copy since
			{601 * ms, 7, 2, false, false, true},
			{1000 * ms, 7, 9, true, false, true},
			{1001 * ms, 7, 9, true, true, true},
			{1002 * ms, 8, 9, true, false, false},
			{2500 * ms, 8, 20, false, false, true}, // twice as long as before
			{3000 * ms, 8, 30, false, false, true},
			{3002 * ms, 8, 30, false, true, true},
		}},
		{"a client that does not tell", []seen{
			{ms, 0, 0, true, false, false},
			{2 * ms, 0, 0, false, false, false},
			{9000 * ms, 0, 0, true, false, false},
		}},
	} {
		var got Copies
		for i, s := range c.seen {
			got.See(s.at, s.launches, s.copies, s.busy)
			if got.Only != s.only || got.Ask != s.ask {
				t.Errorf("%s, step %d: only %v, ask %v", c.name, i, got.Only, got.Ask)
			}
		}
	}
}

// TestCopiesNeverHidesKernels: a program counts only while every launch since it was asked is known, and a launch
// ends that at once. One that launches at least every half second counts never after the first launch.
func TestCopiesNeverHidesKernels(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var c Copies
		now, launches, copies, last := Time(0), uint64(0), uint64(0), Time(-1)
		frequent := rapid.Bool().Draw(t, "frequent")
		for range rapid.IntRange(1, 200).Draw(t, "steps") {
			now = now.Add(time.Duration(rapid.Int64Range(1, int64(400*time.Millisecond)).Draw(t, "pause")))
			if launched := rapid.Bool().Draw(t, "launched") || frequent && now.Sub(last) > 100*time.Millisecond; launched {
				launches += rapid.Uint64Range(1, 1000).Draw(t, "launches")
				last = now
			}
			copies += rapid.Uint64Range(0, 5).Draw(t, "copies")
			c.See(now, launches, copies, rapid.Bool().Draw(t, "busy"))
			switch {
			case c.Only && !c.Ask:
				t.Fatal("counts without being asked for its launches")
			case c.Only && last == now:
				t.Fatal("counts although it launches")
			case c.Only && frequent && last >= 0:
				t.Fatal("counts although it launches all the time")
			}
		}
	})
}
