// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"slices"
	"testing"

	"xsched/internal/control"
)

// With a limit for each kind, many preemptions displace no other entry.
func TestNewestOfEachKind(t *testing.T) {
	var all []control.JournalEntry
	for i, kind := range []string{control.JournalJoined, control.JournalPreemption, control.JournalChange, control.JournalPreemption, control.JournalPreemption, control.JournalChange} {
		all = append(all, control.JournalEntry{Seq: uint64(i), Kind: kind})
	}
	for _, c := range []struct {
		most    int
		perKind bool
		want    []uint64
	}{
		{2, false, []uint64{4, 5}},
		{9, false, []uint64{0, 1, 2, 3, 4, 5}},
		{2, true, []uint64{0, 2, 3, 4, 5}},
		{1, true, []uint64{0, 4, 5}},
		{9, true, []uint64{0, 1, 2, 3, 4, 5}},
	} {
		var got []uint64
		for _, e := range newest(slices.Clone(all), c.most, c.perKind) {
			got = append(got, e.Seq)
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("newest %d, of each kind %v: %v, want %v", c.most, c.perKind, got, c.want)
		}
	}
}
