// SPDX-License-Identifier: Apache-2.0

package top

import (
	"cmp"
	"fmt"

	"xsched/internal/control"
	"xsched/internal/screen"
)

// Fleet makes a snapshot one of several nodes. The view then names the node and the pod of each tenant,
// and only shows.
type Fleet struct {
	Nodes int // that answer
	// Node finds the node of a tenant by its session, which is unique in the snapshot.
	Node map[uint64]string
	// Lost has a line for each node that does not answer.
	Lost []string
}

func (f *Fleet) node(p *control.Process) string {
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

// place tells where a tenant of a fleet runs, with a space at the end.
func (f *Fleet) place(p *control.Process) string {
	if f == nil {
		return ""
	}
	return screen.Clean(cmp.Or(f.node(p), "-")) + " " + PodName(p) + " "
}

// columns returns the columns of the table. In a fleet the node and the pod come first, and the pod
// replaces the user.
func (f *Fleet) columns() []column {
	if f == nil {
		return columns
	}
	out := []column{
		{"NODE", 16, 0, false, func(r row, _ bool) (string, screen.Style) { return screen.Clean(cmp.Or(r.node, "-")), screen.Bold }},
		{"POD", 28, 1, false, func(r row, _ bool) (string, screen.Style) { return PodName(r.Process), screen.Plain }},
	}
	rank := len(out)
	var gone int
	for _, c := range columns {
		if c.title == "USER" {
			gone = c.rank
		}
	}
	for _, c := range columns {
		if c.title == "USER" {
			continue
		}
		if c.rank > gone {
			c.rank--
		}
		c.rank += rank
		out = append(out, c)
	}
	return out
}

// lostLines has the nodes that do not answer, at most a quarter of the screen.
func (f *Fleet) lostLines(height int) []screen.Line {
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
			return append(lines, screen.Text(fmt.Sprintf("%d more nodes do not answer", len(f.Lost)-i), screen.Bad))
		}
		lines = append(lines, screen.Text(screen.Clean(text), screen.Bad))
	}
	return lines
}
