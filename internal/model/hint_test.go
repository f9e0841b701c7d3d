// SPDX-License-Identifier: Apache-2.0

package model

import (
	"errors"
	"strings"
	"testing"
	"time"
)

func TestHintCheck(t *testing.T) {
	for _, c := range []struct {
		hint Hint
		want string // part of the error, "" if it is good
	}{
		{Hint{}, ""},
		{Hint{Priority: PriorityNever, Utilization: 100, Timeslice: TimesliceMin, Nice: NiceMin}, ""},
		{Hint{SLO: SLO{Percentile: 99.9, Latency: time.Millisecond}, Gang: "ranks", K: 3}, ""},
		{Hint{Priority: 256}, "priority 256 is out of range; use -256 to 255"},
		{Hint{CriticalPriority: 300}, "critical priority 300"},
		{Hint{Level: 4}, "level 4"},
		{Hint{InFlight: -1}, "in flight -1"},
		{Hint{Utilization: 101}, "utilization 101 is out of range; use 1 to 100"},
		{Hint{Timeslice: time.Microsecond}, "timeslice 1µs is out of range; use 100µs to 10s"},
		{Hint{Deadline: -1}, "deadline"},
		{Hint{K: -1}, "k -1"},
		{Hint{Nice: 20}, "nice 20"},
		{Hint{SLO: SLO{Latency: -1}}, "slo -1µs"},
		{Hint{SLO: SLO{Percentile: 100, Latency: 1}}, "slo percentile 100"},
		{Hint{Gang: strings.Repeat("g", 129)}, "gang has 129 bytes"},
	} {
		err := c.hint.Check()
		if c.want == "" && err != nil || c.want != "" && (!errors.Is(err, ErrHint) || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%+v: error %v, want %q", c.hint, err, c.want)
		}
	}
}

func TestSLO(t *testing.T) {
	if got := (SLO{Latency: 20 * time.Millisecond}).String(); got != "P99 <= 20ms" {
		t.Errorf("got %q", got)
	}
	if (SLO{}).Said() || (SLO{}).String() != "none" {
		t.Error("a target that nobody stated")
	}
}
