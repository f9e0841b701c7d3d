// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"math/rand/v2"
	"time"
)

// Sample is one iteration of a tenant, CLOCK_MONOTONIC nanoseconds. For a
// tenant at a fixed rate it starts when the request was due, so that
// queueing counts.
type Sample struct{ Start, End int64 }

// Block is an interval in one mode.
type Block struct {
	Mode     string
	From, To int64
}

// Window is an interval that is measured: [From, To).
type Window struct{ From, To int64 }

func (w Window) Length() time.Duration { return time.Duration(max(w.To-w.From, 0)) }

// Overlap is how much of [from, to) lies in the window.
func (w Window) Overlap(from, to int64) int64 {
	return max(min(to, w.To)-max(from, w.From), 0)
}

// Trim is the dropped part of a block. At the start the new mode has to take effect.
// At the end a request still in flight would complete under the next mode.
type Trim struct{ Head, Tail time.Duration }

// Windows returns the measured parts of the blocks of one mode.
func Windows(blocks []Block, mode string, t Trim) []Window {
	var out []Window
	for _, b := range blocks {
		w := Window{b.From + int64(t.Head), b.To - int64(t.Tail)}
		if b.Mode == mode && w.To > w.From {
			out = append(out, w)
		}
	}
	return out
}

func Total(ws []Window) time.Duration {
	var sum time.Duration
	for _, w := range ws {
		sum += w.Length()
	}
	return sum
}

// Latencies returns the latencies of the requests that were due inside the
// windows, whenever they ended. Dropping late ones would hide the tail.
func Latencies(samples []Sample, ws []Window) []time.Duration {
	var out []time.Duration
	for _, s := range samples {
		for _, w := range ws {
			if s.Start >= w.From && s.Start < w.To {
				out = append(out, time.Duration(s.End-s.Start))
				break
			}
		}
	}
	return out
}

// Iterations counts the iterations inside the windows; one that crosses an
// edge counts by its fraction inside.
func Iterations(samples []Sample, ws []Window) float64 {
	n := 0.0
	for _, s := range samples {
		for _, w := range ws {
			if s.End > s.Start {
				n += float64(w.Overlap(s.Start, s.End)) / float64(s.End-s.Start)
			}
		}
	}
	return n
}

// Rate returns iterations per second inside the windows; 0 without windows.
func Rate(samples []Sample, ws []Window) float64 {
	t := Total(ws)
	if t <= 0 {
		return 0
	}
	return Iterations(samples, ws) / t.Seconds()
}

// Schedule returns the order of the modes: rounds of all of them, each round
// shuffled, so that slow drift of the machine affects all modes alike.
func Schedule(modes []string, rounds int, seed uint64) []string {
	rng := rand.New(rand.NewPCG(seed, 0))
	var out []string
	for range rounds {
		round := append([]string(nil), modes...)
		rng.Shuffle(len(round), func(i, j int) { round[i], round[j] = round[j], round[i] })
		out = append(out, round...)
	}
	return out
}
