// SPDX-License-Identifier: Apache-2.0

package fleetview

import (
	"fmt"
	"strings"
)

// remark is what several nodes have in common.
type remark struct {
	nodes []string
	text  string
}

// named is how many nodes of a remark are named.
const named = 3

// String is one line, also for a thousand nodes.
func (r *remark) String() string {
	switch n := len(r.nodes); {
	case n == 1:
		return fmt.Sprintf("node %s: %s", r.nodes[0], r.text)
	case n <= named:
		return fmt.Sprintf("%d nodes (%s): %s", n, strings.Join(r.nodes, ", "), r.text)
	default:
		return fmt.Sprintf("%d nodes (%s, ...): %s", n, strings.Join(r.nodes[:named], ", "), r.text)
	}
}

// Remarks collects remarks about nodes. Nodes with equal remarks share a line.
type Remarks struct {
	all []*remark // in the order of their first nodes
	by  map[string]*remark
}

// Add adds a remark about a node.
func (r *Remarks) Add(node, text string) {
	if r.by == nil {
		r.by = map[string]*remark{}
	}
	known := r.by[text]
	if known == nil {
		known = &remark{text: text}
		r.by[text] = known
		r.all = append(r.all, known)
	}
	known.nodes = append(known.nodes, node)
}

// Lines returns the remarks, one line each.
func (r *Remarks) Lines() []string {
	var lines []string
	for _, one := range r.all {
		lines = append(lines, one.String())
	}
	return lines
}
