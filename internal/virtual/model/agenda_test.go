// SPDX-License-Identifier: Apache-2.0

package gpumodel

import (
	"cmp"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"xsched/internal/model"
)

// TestAgenda checks that entries leave in order of time, and equal times in order of insertion.
func TestAgenda(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		type thing struct {
			at model.Time
			n  int
		}
		var a Agenda[int]
		var left []thing
		n := 0
		for range rapid.IntRange(0, 200).Draw(t, "steps") {
			if len(left) > 0 && rapid.Bool().Draw(t, "take") {
				first := slices.MinFunc(left, func(x, y thing) int { return cmp.Or(cmp.Compare(x.at, y.at), cmp.Compare(x.n, y.n)) })
				if a.When() != first.at || a.Pop() != first.n {
					t.Fatalf("not the first of %v", left)
				}
				left = slices.DeleteFunc(left, func(x thing) bool { return x == first })
				continue
			}
			at := model.Time(rapid.IntRange(0, 20).Draw(t, "at"))
			a.Push(at, n)
			left = append(left, thing{at, n})
			n++
		}
		if len(left) == 0 && a.When() != model.Never {
			t.Fatal("something is left")
		}
	})
}
