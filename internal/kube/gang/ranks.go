// SPDX-License-Identifier: Apache-2.0

package gang

import (
	"time"

	"xsched/internal/control"
)

// Key names a group. Groups of two namespaces are apart, whatever their names.
type Key struct{ Namespace, Group string }

func (k Key) String() string { return k.Namespace + "/" + k.Group }

// Parts of the time that programs of higher priority use a GPU: a rank that has no chance asks for a hold,
// and one that gets a fair part again ends it.
const (
	askPart  = 0.9
	keepPart = 0.5
)

// Ranks finds the groups on a node, and whether their ranks are kept from running. It compares samples of
// the daemon's programs.
type Ranks struct {
	// Threshold is how long a rank must be kept from running. Pauses of single requests are far shorter,
	// and never leave the node.
	Threshold time.Duration

	last    int64 // monotonic time of the last sample
	ran     map[queueKey]int64
	blocked map[Key]time.Duration
	need    map[Key]bool
}

type queueKey struct {
	session uint64
	index   uint32
}

// Rank is a group's state on this node.
type Rank struct {
	Need     bool  // its ranks are kept from running
	Priority int32 // the highest that was granted to those
}

// rival is a program's use of a GPU since the last sample.
type rival struct {
	priority int32
	part     float64
}

// See takes a sample and returns the groups of this node.
func (r *Ranks) See(mono int64, all []control.Process) map[Key]Rank {
	passed := mono - r.last
	first := r.ran == nil || passed <= 0
	ran, rivals := map[queueKey]int64{}, map[string][]rival{}
	for i := range all {
		p := &all[i]
		parts := map[string]float64{}
		for _, q := range p.Queues {
			k := queueKey{p.Session, q.Index}
			ran[k] = q.RanNS
			if was, known := r.ran[k]; known && !first {
				parts[q.Device] = max(parts[q.Device], float64(q.RanNS-was)/float64(passed))
			}
		}
		for device, part := range parts {
			rivals[device] = append(rivals[device], rival{p.Priority, part})
		}
	}
	out, blocked, need := map[Key]Rank{}, map[Key]time.Duration{}, map[Key]bool{}
	for i := range all {
		p := &all[i]
		if p.Group == "" || p.Namespace == "" {
			continue
		}
		k := Key{p.Namespace, p.Group}
		rank := out[k]
		stopped, part := kept(p, rivals)
		// A service of the same group may be what keeps this rank from running. Only the rank asks.
		asks := stopped && part >= askPart && !first
		if asks {
			blocked[k] = max(blocked[k], r.blocked[k]+time.Duration(passed))
		}
		if asks && blocked[k] >= r.Threshold || r.need[k] && p.GroupHeld && (part >= keepPart || first) {
			if !rank.Need || p.GroupPriority > rank.Priority {
				rank.Priority = p.GroupPriority
			}
			rank.Need = true
		}
		out[k], need[k] = rank, rank.Need
	}
	r.last, r.ran, r.blocked, r.need = mono, ran, blocked, need
	return out
}

// kept reports whether a rank has work and does not run, and which part of the time programs of higher
// priority used its most used GPU.
func kept(p *control.Process, rivals map[string][]rival) (stopped bool, part float64) {
	for _, q := range p.Queues {
		used := 0.0
		for _, o := range rivals[q.Device] {
			if o.priority > p.Priority {
				used += o.part
			}
		}
		part = max(part, used)
		// State is held while the group is, which hides what the policy says.
		stopped = stopped || q.Busy && (q.State == "suspended" || q.State == "yielding" || p.GroupHeld)
	}
	return stopped, part
}
