// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"cmp"
	"slices"
	"strings"
)

// severity orders the states: what prevents scheduling comes first.
var severity = []Status{Missing, Limited, Note, OK}

// Checks of one state, by the beginning of their names. Those not listed belong to a driver and come
// between the two lists.
var (
	first = []string{"driver", "device nodes", "GPUs", "shim", "pidfd", "memfd seals", "runtime folder", "cache folder", "daemon"}
	last  = []string{"level on ", "GPU ", "attach", "pidfd_getfd", "engine thread", "SO_PEERPIDFD"}
)

// byImportance sorts checks in the order in which a user should read them. It keeps the order of equals.
func byImportance(checks []Check) {
	slices.SortStableFunc(checks, func(a, b Check) int {
		return cmp.Or(
			cmp.Compare(slices.Index(severity, a.Status), slices.Index(severity, b.Status)),
			cmp.Compare(rank(a.Name), rank(b.Name)),
		)
	})
}

func rank(name string) int {
	if i := slices.Index(first, name); i >= 0 {
		return i
	}
	if i := slices.IndexFunc(last, func(start string) bool { return strings.HasPrefix(name, start) }); i >= 0 {
		return len(first) + 1 + i
	}
	return len(first)
}

// Line is a check as one sentence: the cause, and the remedy if there is one.
func Line(c Check) string {
	if c.Remedy == "" || c.Status == OK {
		return c.Detail
	}
	return c.Detail + "; " + c.Remedy
}
