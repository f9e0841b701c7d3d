// SPDX-License-Identifier: Apache-2.0

package top

import (
	"cmp"
	"fmt"
	"slices"

	"xsched/internal/control"
	"xsched/internal/screen"
)

// nodeOf returns the node of a tenant; f is nil outside a fleet.
func nodeOf(f *control.Fleet, p *control.Process) string {
	if f == nil {
		return ""
	}
	return f.Node[p.Session]
}

// PodName is NAMESPACE/POD of a tenant, or "-" outside a pod.
func PodName(p *control.Process) string {
	if p.Pod == "" {
		return "-"
	}
	return screen.Clean(p.Namespace + "/" + p.Pod)
}

// place tells where a tenant runs: its node in a fleet, and its pod with the container. It ends with a
// space, unless it is empty.
func place(f *control.Fleet, p *control.Process) string {
	pod := screen.Clean(podOf(p))
	switch {
	case f != nil:
		return screen.Clean(cmp.Or(nodeOf(f, p), "-")) + " " + cmp.Or(pod, "-") + " "
	case pod != "":
		return pod + " "
	}
	return ""
}

// columnsOf returns the columns of the table. The pod replaces the user if any tenant has one, and in a
// fleet, where the node comes first.
func columnsOf(f *control.Fleet, rows []row) []column {
	if f == nil && !slices.ContainsFunc(rows, func(r row) bool { return r.Pod != "" }) {
		return columns
	}
	pod := column{"POD", 28, 1, false, func(r row, _ bool) (string, screen.Style) { return PodName(r.Process), screen.Plain }}
	var out []column
	if f != nil {
		out = append(out, column{"NODE", 16, 0, false, func(r row, _ bool) (string, screen.Style) { return screen.Clean(cmp.Or(r.node, "-")), screen.Bold }}, pod)
	}
	user := slices.IndexFunc(columns, func(c column) bool { return c.title == "USER" })
	for i, c := range columns {
		if i == user {
			if f == nil {
				out = append(out, pod)
			}
			continue
		}
		if c.rank > columns[user].rank {
			c.rank--
		}
		if f != nil {
			c.rank += 2
		} else if c.rank > 0 { // the PID stays first
			c.rank++
		}
		out = append(out, c)
	}
	return out
}

// lostLines has the nodes that do not answer, at most a quarter of the screen.
func lostLines(f *control.Fleet, height int) []screen.Line {
	if f == nil {
		return nil
	}
	most := len(f.Lost)
	if height > 0 {
		most = min(most, max(height/4-1, 1))
	}
	var lines []screen.Line
	for i, text := range f.Lost {
		if i == most-1 && len(f.Lost) > most {
			return append(lines, screen.Text(fmt.Sprintf("nodes do not answer for %d more reasons", len(f.Lost)-i), screen.Bad))
		}
		lines = append(lines, screen.Text(screen.Clean(text), screen.Bad))
	}
	return lines
}
