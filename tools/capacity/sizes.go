// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"slices"
	"strings"

	"xsched/internal/report"
	"xsched/internal/sim/fleet"
)

// large is the number of nodes of a large cluster.
const large = 1000

// sizes are the numbers of nodes of the studied fleets.
var sizes = []int{12, nodes, 250, large}

// of returns the needs of a fleet of n nodes.
func (f *mixFigures) of(n int) fleetNeeds {
	if i := slices.IndexFunc(f.Fleets, func(one fleetNeeds) bool { return one.Nodes == n }); i >= 0 {
		return f.Fleets[i]
	}
	return fleetNeeds{Nodes: n}
}

// count returns the GPUs that a mode needs, with a separator of thousands.
func (f fleetNeeds) count(how fleet.Sharing) string {
	if gpus := f.Needs[string(how)].GPUs; gpus > 0 {
		return report.Count(float64(gpus))
	}
	return "> " + report.Count(float64(f.Nodes*perNode))
}

// part returns XSched's need relative to exclusive use.
func (f fleetNeeds) part() string {
	return part(f.Needs[string(fleet.XSched)].GPUs, f.Needs[string(fleet.Exclusive)].GPUs)
}

func part(gpus, of int) string {
	if gpus == 0 || of == 0 {
		return "-"
	}
	return report.RoundPercent(float64(gpus) / float64(of))
}

// fewest returns the modes that need the fewest GPUs.
func (f fleetNeeds) fewest() []fleet.Sharing {
	least := 0
	for _, n := range f.Needs {
		if n.GPUs > 0 && (least == 0 || n.GPUs < least) {
			least = n.GPUs
		}
	}
	return slices.DeleteFunc(fleet.Sharings(), func(how fleet.Sharing) bool { return f.Needs[string(how)].GPUs != least })
}

// needsTable has the needs of the mixes that fill a fleet of n nodes. The fewest GPUs are bold.
func (f *figures) needsTable(n int) string {
	var b strings.Builder
	b.WriteString("| mix | load | pods | exclusive | time-slicing | MPS | XSched | XSched of exclusive | fewest GPUs | GPU busy: exclusive, XSched |\n" + strings.Repeat("|---", 10) + "|\n")
	for _, m := range f.Mixes {
		one := m.of(n)
		fewest := one.fewest()
		fmt.Fprintf(&b, "| %s | %s | %s |", m.Name, m.About, report.Count(float64(one.Pods)))
		var names []string
		for _, how := range fleet.Sharings() {
			count := one.count(how)
			if slices.Contains(fewest, how) {
				names = append(names, string(how))
				count = "**" + count + "**"
			}
			b.WriteString(" " + count + " |")
		}
		if len(names) == len(fleet.Sharings()) {
			names = []string{"all equal"}
		}
		fmt.Fprintf(&b, " %s | %s | %s, %s |\n", one.part(), strings.Join(names, ", "),
			report.RoundPercent(one.Needs[string(fleet.Exclusive)].Busy), report.RoundPercent(one.Needs[string(fleet.XSched)].Busy))
	}
	return b.String()
}

// sizesTable has the needs of XSched relative to exclusive use in fleets of all sizes.
func (f *figures) sizesTable() string {
	var b strings.Builder
	b.WriteString("| mix |")
	for _, n := range sizes {
		fmt.Fprintf(&b, " %s nodes |", report.Count(float64(n)))
	}
	b.WriteString("\n" + strings.Repeat("|---", len(sizes)+1) + "|\n")
	for _, m := range f.Mixes {
		fmt.Fprintf(&b, "| %s |", m.Name)
		for _, n := range sizes {
			one := m.of(n)
			fmt.Fprintf(&b, " %s of %s, %s |", one.count(fleet.XSched), one.count(fleet.Exclusive), one.part())
		}
		b.WriteString("\n")
	}
	return b.String()
}
