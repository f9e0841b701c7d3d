// SPDX-License-Identifier: Apache-2.0

// Package fleetview shows the tenants of all nodes of a cluster in one view. Fleet is the state: it is
// merged and filtered without a cluster. Daemons asks the views of the nodes (package view) through the API
// server, so that nodes open no port.
package fleetview

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"slices"

	"xsched/internal/control"
	"xsched/internal/kube/view"
)

// Node is one node's daemon: its last snapshot, or why there is none.
type Node struct {
	Name     string            `json:"node"`
	Pod      string            `json:"pod,omitempty"` // of the daemon
	Error    string            `json:"error,omitempty"`
	Snapshot *control.Snapshot `json:"snapshot,omitempty"`
}

// Fleet has all nodes, by name.
type Fleet struct {
	TimeNS int64  `json:"time_unix_ns"`
	Nodes  []Node `json:"nodes"`
}

// Pod identifies a tenant's pod.
type Pod struct{ Namespace, Name string }

// Filter selects tenants. The zero value selects all, also those outside pods.
type Filter struct {
	Namespace string
	// Pods, if not nil, are those that a label selector matches.
	Pods map[Pod]bool
}

// Takes reports whether a tenant passes.
func (f *Filter) Takes(p *control.Process) bool {
	return (f.Namespace == "" || p.Namespace == f.Namespace) && (f.Pods == nil || f.Pods[Pod{p.Namespace, p.Pod}])
}

// Apply removes the tenants that do not pass. The nodes stay: an error must be seen.
func (f *Filter) Apply(fleet Fleet) Fleet {
	if f.Namespace == "" && f.Pods == nil {
		return fleet
	}
	out := fleet
	out.Nodes = slices.Clone(fleet.Nodes)
	for i, n := range out.Nodes {
		if n.Snapshot == nil {
			continue
		}
		s := *n.Snapshot
		s.List.Processes = slices.DeleteFunc(slices.Clone(s.List.Processes), func(p control.Process) bool { return !f.Takes(&p) })
		out.Nodes[i].Snapshot = &s
	}
	return out
}

// Tenant is a program of a node.
type Tenant struct {
	Node string `json:"node"`
	control.Process
	Usage
}

// Tenants returns the programs of all nodes, by node, namespace, pod and PID.
func (f *Fleet) Tenants() []Tenant {
	var out []Tenant
	for _, n := range f.Nodes {
		if n.Snapshot == nil {
			continue
		}
		for _, p := range n.Snapshot.List.Processes {
			out = append(out, Tenant{n.Name, p, usageOf(&p)})
		}
	}
	slices.SortStableFunc(out, func(a, b Tenant) int {
		return cmp.Or(cmp.Compare(a.Node, b.Node), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Pod, b.Pod), cmp.Compare(a.PID, b.PID))
	})
	return out
}

// Errors returns the nodes without a snapshot, by name.
func (f *Fleet) Errors() []Node {
	return slices.DeleteFunc(slices.Clone(f.Nodes), func(n Node) bool { return n.Error == "" })
}

// Merged returns the fleet as one snapshot for the view of a single daemon. GPUs and tenants carry the
// name of their node. PIDs and sessions repeat among nodes, so a tenant gets a session of its own.
func (f *Fleet) Merged() control.Snapshot {
	fleet := &control.Fleet{Node: map[uint64]string{}}
	out := control.Snapshot{TimeNS: f.TimeNS, List: control.List{Processes: []control.Process{}}, Fleet: fleet}
	var lost Remarks
	for _, n := range f.Nodes {
		s := n.Snapshot
		if s == nil {
			lost.Add(n.Name, cmp.Or(n.Error, "no answer yet"))
			continue
		}
		out.List.Policy = same(fleet.Nodes, out.List.Policy, s.List.Policy)
		out.List.Mode = same(fleet.Nodes, control.ModeText(out.List.Mode, out.List.ModeLevel), control.ModeText(s.List.Mode, s.List.ModeLevel))
		out.List.ModeLevel = 0
		if out.List.Mode != mixed {
			out.List.Mode, out.List.ModeLevel = s.List.Mode, s.List.ModeLevel
		}
		out.Daemon.Version = same(fleet.Nodes, out.Daemon.Version, s.Daemon.Version)
		fleet.Nodes++
		for _, p := range s.Problems {
			p.Cause = n.Name + ": " + p.Cause
			out.Problems = append(out.Problems, p)
		}
		for _, d := range s.Devices {
			d.ID = n.Name + " " + d.ID
			out.Devices = append(out.Devices, d)
		}
		for _, d := range s.List.Devices {
			d.Device = n.Name + " " + d.Device
			out.List.Devices = append(out.List.Devices, d)
		}
		for _, p := range s.List.Processes {
			p.Session = session(n.Name, p.PID, p.Session)
			fleet.Node[p.Session] = n.Name
			out.List.Processes = append(out.List.Processes, p)
		}
	}
	fleet.Lost = lost.Lines()
	return out
}

// mixed is the value of a setting in which nodes differ.
const mixed = "mixed"

// same returns a value that all nodes have, or mixed.
func same(nodes int, old, next string) string {
	if nodes == 0 || old == next {
		return next
	}
	return mixed
}

func session(node string, pid int, session uint64) uint64 {
	h := fnv.New64a()
	_, _ = fmt.Fprintf(h, "%s/%d/%d", node, pid, session)
	return h.Sum64()
}

// maxLine bounds one line of an answer.
const maxLine = 16 << 20

// parse reads a snapshot, or why a stream has none.
func parse(line []byte) (*control.Snapshot, error) {
	var s struct {
		control.Snapshot
		view.Failure
	}
	if err := json.Unmarshal(line, &s); err != nil {
		return nil, fmt.Errorf("the node's answer is unreadable: %w; update kubectl xsched", err)
	}
	if s.Error != "" {
		return nil, errors.New(s.Error)
	}
	return &s.Snapshot, nil
}

func sortNodes(nodes []Node) {
	slices.SortFunc(nodes, func(a, b Node) int { return cmp.Compare(a.Name, b.Name) })
}
