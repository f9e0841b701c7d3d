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

func (d *device) takes(c *claim, memory int) bool {
	if d.share+c.share > 100 || d.memory+c.memory > memory {
		return false
	}
	return !c.apart || c.service && len(d.jobs) == 0 || !c.service && len(d.services) == 0
}

// cluster is the state of all nodes.
type cluster struct {
	perNode, memory int
	devices         []device // node by node
	allocated       []int    // of each node: share and memory, in thousandths of a GPU
}

func newCluster(nodes, perNode, memory int) *cluster {
	return &cluster{perNode: perNode, memory: memory, devices: make([]device, nodes*perNode), allocated: make([]int, nodes)}
}

// wholeGPU is the weight of a whole GPU.
const wholeGPU = 2000

// weight is a claim's part in its node's score.
func (c *cluster) weight(k *claim) int { return 10*k.share + 1000*k.memory/max(c.memory, 1) }

// fit appends the first n devices of a node that take the claim.
func (c *cluster) fit(node, n int, k *claim, to []int) ([]int, bool) {
	from := len(to)
	for i := node * c.perNode; i < (node+1)*c.perNode; i++ {
		if c.devices[i].takes(k, c.memory) {
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
	for left := k.gpus; left > 0; {
		n := min(left, c.perNode)
		most := c.perNode*wholeGPU - n*c.weight(k) // allocated on a node that has room
		best := -1
		try := func(node int) bool {
			if c.allocated[node] > most {
				return false
			}
			if best >= 0 {
				more := c.allocated[node] > c.allocated[best]
				if score == FirstFit || score == MostAllocated && !more || score == LeastAllocated && c.allocated[node] >= c.allocated[best] {
					return false
				}
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
		if nodes == nil || left > c.perNode || len(used) > 0 {
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
		d := &c.devices[i]
		d.share += t.claim.share
		d.memory += t.claim.memory
		c.allocated[i/c.perNode] += c.weight(&t.claim)
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
		d := &c.devices[i]
		d.share -= t.claim.share
		d.memory -= t.claim.memory
		c.allocated[i/c.perNode] -= c.weight(&t.claim)
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
		d := &c.devices[i]
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
			return share+k.share <= 100 && memory+k.memory <= c.memory && (!k.apart || jobs == 0)
		}
		for _, t := range lower {
			if fits() || t.pod.Priority >= priority || device >= 0 && len(chosen)+1 >= len(out) {
				break
			}
			chosen = append(chosen, t)
			share, memory, jobs = share-t.claim.share, memory-t.claim.memory, jobs-1
		}
		if len(chosen) > 0 && fits() {
			device, out = i, chosen
		}
	}
	return device, out
}
