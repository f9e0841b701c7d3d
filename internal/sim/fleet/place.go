// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"fmt"
	"slices"
)

// This file has Kubernetes' allocation rules: a device with allowMultipleAllocations takes claims as
// long as their share and memory fit (consumable capacity), the allocator takes a node's first
// devices that fit, and the scheduler chooses the node by its score.

// Score is how the scheduler chooses among nodes that fit; equal scores take the first node.
type Score string

// The scores: of NodeResourcesFit, and without one.
const (
	MostAllocated  Score = "most"
	LeastAllocated Score = "least"
	FirstFit       Score = "first"
)

// ParseScore returns a score by its name.
func ParseScore(name string) (Score, error) {
	for _, s := range []Score{MostAllocated, LeastAllocated, FirstFit} {
		if string(s) == name {
			return s, nil
		}
	}
	return "", fmt.Errorf("unknown score %q; use most, least or first", name)
}

// device is a GPU.
type device struct {
	share, memory  int // allocated
	services, jobs []*task
	kept           float64 // of each job, as a fraction of its throughput alone
	all            float64 // of all jobs, as counted
	busy           float64 // part of its time
	ideal          float64 // what services leave to its jobs
	late           int     // services over their target
}

// takes reports whether a claim that takes this memory fits on a GPU with that much.
func (d *device) takes(c *claim, memory, of int) bool {
	if d.share+c.share > 100 || d.memory+memory > of {
		return false
	}
	return !c.apart || c.service && len(d.jobs) == 0 || !c.service && len(d.services) == 0
}

// cluster is the state of all nodes.
type cluster struct {
	nodes     []Node
	first     []int          // device of each node, and their number
	home      []int          // node of each device
	devices   []device       // node by node
	allocated []int          // of each node: share and memory, in thousandths of a GPU
	largest   map[string]int // GPUs of the largest node, by the models that a claim accepts
	kinds     []Node         // different ones
	kind      []int          // of each node
	limits    []int          // of each kind, for find
}

func newCluster(nodes []Node) *cluster {
	c := &cluster{nodes: nodes, allocated: make([]int, len(nodes)), first: []int{0}, largest: map[string]int{}}
	for i, n := range nodes {
		for range n.GPUs {
			c.home = append(c.home, i)
		}
		kind := slices.Index(c.kinds, n)
		if kind < 0 {
			kind = len(c.kinds)
			c.kinds = append(c.kinds, n)
		}
		c.kind = append(c.kind, kind)
		c.first = append(c.first, len(c.home))
	}
	c.devices, c.limits = make([]device, len(c.home)), make([]int, len(c.kinds))
	return c
}

// most returns the most GPUs that a pod of the claim can have: those of the largest node that it accepts.
func (c *cluster) most(k *claim) int {
	n, known := c.largest[k.models]
	if !known {
		for i := range c.kinds {
			if accepts(k.models, c.kinds[i].Model) {
				n = max(n, c.kinds[i].GPUs)
			}
		}
		c.largest[k.models] = n
	}
	return n
}

// wholeGPU is the weight of a whole GPU.
const wholeGPU = 2000

// weight is a claim's part in the score of a node.
func (n *Node) weight(k *claim) int {
	memory, _ := n.takes(k)
	return 10*k.share + 1000*memory/max(n.Memory, 1)
}

// setLimits finds how much of a node of each kind may be allocated if n more GPUs take the claim.
func (c *cluster) setLimits(k *claim, n int) {
	for i := range c.kinds {
		if c.limits[i] = c.kinds[i].GPUs*wholeGPU - n*c.kinds[i].weight(k); !accepts(k.models, c.kinds[i].Model) {
			c.limits[i] = -1
		}
	}
}

// fuller reports whether node a is fuller than node b, relative to its size.
func (c *cluster) fuller(a, b int) bool {
	return c.allocated[a]*c.nodes[b].GPUs > c.allocated[b]*c.nodes[a].GPUs
}

// fit appends the first n devices of a node that take the claim.
func (c *cluster) fit(node, n int, k *claim, to []int) ([]int, bool) {
	from := len(to)
	memory, ok := c.nodes[node].takes(k)
	if !ok {
		return to, false
	}
	for i := c.first[node]; i < c.first[node+1]; i++ {
		if c.devices[i].takes(k, memory, c.nodes[node].Memory) {
			if to = append(to, i); len(to)-from == n {
				return to, true
			}
		}
	}
	return to[:from], false
}

// find returns devices for a claim, or none. A gang is placed as a whole or not at all; each of its
// pods takes at most a node's GPUs. Among nodes only nodes are tried; nil tries all.
func (c *cluster) find(k *claim, score Score, nodes []int, to []int) []int {
	to = to[:0]
	var used []int // nodes of earlier pods of the gang
	most := c.most(k)
	if most == 0 {
		return nil
	}
	for left := k.gpus; left > 0; {
		n := min(left, most)
		c.setLimits(k, n)
		best := -1
		try := func(node int) bool {
			if c.allocated[node] > c.limits[c.kind[node]] { // no room
				return false
			}
			if best >= 0 && (score == FirstFit || score == MostAllocated && !c.fuller(node, best) || score == LeastAllocated && !c.fuller(best, node)) {
				return false
			}
			if slices.Contains(used, node) {
				return false
			}
			_, ok := c.fit(node, n, k, to)
			if ok {
				best = node
			}
			return ok && score == FirstFit
		}
		if nodes == nil || left > most || len(used) > 0 {
			for node := range c.allocated {
				if try(node) {
					break
				}
			}
		} else {
			for _, node := range nodes {
				if try(node) {
					break
				}
			}
		}
		if best < 0 {
			return nil
		}
		to, _ = c.fit(best, n, k, to)
		used = append(used, best)
		left -= n
	}
	return to
}

// place allocates devices to a task.
func (c *cluster) place(t *task, on []int) {
	t.on = slices.Clone(on)
	for _, i := range on {
		d, node := &c.devices[i], c.home[i]
		memory, _ := c.nodes[node].takes(&t.claim)
		d.share += t.claim.share
		d.memory += memory
		c.allocated[node] += c.nodes[node].weight(&t.claim)
		if t.pod.Service {
			d.services = append(d.services, t)
		} else {
			d.jobs = append(d.jobs, t)
		}
	}
}

// remove gives a task's devices back.
func (c *cluster) remove(t *task) {
	for _, i := range t.on {
		d, node := &c.devices[i], c.home[i]
		memory, _ := c.nodes[node].takes(&t.claim)
		d.share -= t.claim.share
		d.memory -= memory
		c.allocated[node] -= c.nodes[node].weight(&t.claim)
		from := &d.jobs
		if t.pod.Service {
			from = &d.services
		}
		at := slices.Index(*from, t)
		*from = slices.Delete(*from, at, at+1)
	}
}

// victims returns the jobs to evict so that a claim of one GPU fits on a device: as few as possible,
// those of lower priority and the youngest first. It returns none if no device can be freed.
func (c *cluster) victims(k *claim, priority int) (device int, out []*task) {
	device = -1
	for i := range c.devices {
		d, node := &c.devices[i], &c.nodes[c.home[i]]
		wanted, ok := node.takes(k)
		if !ok {
			continue
		}
		share, memory, jobs := d.share, d.memory, len(d.jobs)
		var chosen []*task
		lower := slices.Clone(d.jobs)
		slices.SortStableFunc(lower, func(a, b *task) int {
			if a.pod.Priority != b.pod.Priority {
				return a.pod.Priority - b.pod.Priority
			}
			return int(min(max(b.started-a.started, -1), 1))
		})
		fits := func() bool {
			return share+k.share <= 100 && memory+wanted <= node.Memory && (!k.apart || jobs == 0)
		}
		for _, t := range lower {
			if fits() || t.pod.Priority >= priority || device >= 0 && len(chosen)+1 >= len(out) {
				break
			}
			chosen = append(chosen, t)
			given, _ := node.takes(&t.claim)
			share, memory, jobs = share-t.claim.share, memory-given, jobs-1
		}
		if len(chosen) > 0 && fits() {
			device, out = i, chosen
		}
	}
	return device, out
}
