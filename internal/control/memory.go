// SPDX-License-Identifier: Apache-2.0

package control

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"xsched/internal/model"
)

// Amount writes an amount of memory for people.
func Amount(bytes int64) string { return model.Bytes(bytes).Short() }

// Text describes the memory of a program on a GPU: "64GiB of 80GiB, movable 61GiB (rest: 2GiB pool, 1GiB
// small), 41GiB away by hand".
func (m *Memory) Text() string {
	text := Amount(m.UsedBytes)
	if m.QuotaBytes != 0 {
		text += " of " + Amount(m.QuotaBytes)
	}
	if m.MovableBytes > 0 || m.AwayBytes > 0 {
		text += ", movable " + Amount(m.MovableBytes) + m.fixedText()
	}
	switch move := m.MoveText(); {
	case move != "":
		text += ", " + move
	case m.AwayBytes > 0 && m.Evicted:
		text += ", " + Amount(m.AwayBytes) + " away by hand"
	case m.AwayBytes > 0:
		text += ", " + Amount(m.AwayBytes) + " away"
	}
	if m.Waits && m.AwayBytes > 0 {
		text += ", its calls wait"
	}
	if m.EvictFailed != "" {
		text += ", not evicted: " + m.EvictFailed
	}
	if m.Refused > 0 {
		text += fmt.Sprintf(", %d allocations refused", m.Refused)
	}
	return text
}

// fixedText lists why the rest can't leave, the largest part first.
func (m *Memory) fixedText() string {
	reasons := slices.SortedFunc(maps.Keys(m.Fixed), func(a, b string) int {
		return cmp.Or(cmp.Compare(m.Fixed[b], m.Fixed[a]), strings.Compare(a, b))
	})
	parts := make([]string, 0, len(reasons))
	for _, reason := range reasons {
		parts = append(parts, Amount(m.Fixed[reason])+" "+reason)
	}
	if len(parts) == 0 {
		return ""
	}
	return " (rest: " + strings.Join(parts, ", ") + ")"
}

// moveCells is the width of a bar.
const moveCells = 10

// MoveText is a bar for a move in progress; empty: none is.
func (m *Memory) MoveText() string {
	move := m.Move
	if move == nil || !move.Active || m.Residency == MemoryResident || m.Residency == MemoryAway {
		return ""
	}
	done := 0
	if move.Bytes > 0 {
		done = int(min(move.MovedBytes, move.Bytes) * moveCells / move.Bytes)
	}
	text := fmt.Sprintf("%s [%s%s] %s of %s", m.Residency, strings.Repeat("#", done), strings.Repeat("-", moveCells-done), Amount(move.MovedBytes), Amount(move.Bytes))
	if move.MovedBytes > 0 {
		text += fmt.Sprintf(", %.1f GB/s", move.Rate()/1e9)
	}
	return text
}
