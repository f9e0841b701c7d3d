// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"time"

	"xsched/internal/report"
)

// Pieces turns intervals into pieces of a lane, as far as they lie in the window.
func (w Window) Pieces(list []Window, state report.State) []report.Piece {
	var out []report.Piece
	for _, v := range list {
		if from, to := max(v.From, w.From), min(v.To, w.To); to > from {
			out = append(out, report.Piece{From: time.Duration(from - w.From), To: time.Duration(to - w.From), State: state})
		}
	}
	return out
}

// OnDevice returns when some processes had the device.
func (w Window) OnDevice(segs []Segment, mine func(pid int) bool) []report.Piece {
	var out []report.Piece
	for _, s := range segs {
		if !mine(s.PID) {
			continue
		}
		state := report.Running
		if s.Switch {
			state = report.Switching
		}
		out = append(out, w.Pieces([]Window{{s.From, s.To}}, state)...)
	}
	return out
}

// Requests returns the requests that overlap with the window, from arrival to end.
func (w Window) Requests(list []Window) []report.Request {
	var out []report.Request
	for _, v := range list {
		if w.Overlap(v.From, v.To) > 0 {
			out = append(out, report.Request{From: time.Duration(v.From - w.From), To: time.Duration(v.To - w.From)})
		}
	}
	return out
}

// Spans returns samples as intervals.
func Spans(samples []Sample) []Window {
	out := make([]Window, 0, len(samples))
	for _, s := range samples {
		out = append(out, Window{s.Start, s.End})
	}
	return out
}

// Curve returns latencies in milliseconds for a chart.
func Curve(name, class string, sorted []time.Duration) report.Curve {
	c := report.Curve{Name: name, Class: class}
	for _, d := range sorted {
		c.Values = append(c.Values, report.MS(d))
	}
	return c
}
