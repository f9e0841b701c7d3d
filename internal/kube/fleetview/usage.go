// SPDX-License-Identifier: Apache-2.0

package fleetview

import "xsched/internal/control"

// Usage is what a program, or a pod with all its programs on a node, ran of the time with work. The time
// that it lost is LostNS of the program or the pod.
type Usage struct {
	RanNS int64 `json:"ran_ns"` // with work while allowed to run, summed over queues
	// Kept is the part of the time with work that it ran; absent before its first work.
	Kept *float64 `json:"kept,omitempty"`
}

func usage(ran, lost int64) Usage {
	if ran+lost <= 0 {
		return Usage{}
	}
	kept := float64(ran) / float64(ran+lost)
	return Usage{ran, &kept}
}

func usageOf(p *control.Process) Usage {
	var ran int64
	for i := range p.Queues {
		ran += p.Queues[i].RanNS
	}
	return usage(ran, p.LostNS)
}

// PodUsage is a pod on its node, with the sums of its programs.
type PodUsage struct {
	Node        string  `json:"node"`
	Namespace   string  `json:"namespace"`
	Pod         string  `json:"pod"`
	Class       string  `json:"class,omitempty"`
	Programs    int     `json:"programs"`
	GPUShare    float64 `json:"gpu_share"`
	Preemptions uint64  `json:"preemptions"`
	LostNS      int64   `json:"lost_ns"` // with work while preempted, summed over queues
	// P99US and WaitP99US are those of the program with the largest; absent if no requests are known.
	P99US     *float64 `json:"p99_us,omitempty"`
	WaitP99US *float64 `json:"wait_p99_us,omitempty"`
	Usage
}

// Pods returns the pods of all nodes, by node, namespace and name. Programs outside pods are left out.
func (f *Fleet) Pods() []PodUsage {
	var out []PodUsage
	for _, t := range f.Tenants() {
		if t.Pod == "" {
			continue
		}
		last := len(out) - 1
		if last < 0 || out[last].Node != t.Node || out[last].Namespace != t.Namespace || out[last].Pod != t.Pod {
			out = append(out, PodUsage{Node: t.Node, Namespace: t.Namespace, Pod: t.Pod, Class: t.Class})
			last++
		}
		out[last].add(&t)
	}
	return out
}

func (p *PodUsage) add(t *Tenant) {
	p.Programs++
	p.GPUShare += t.GPUShare
	p.Preemptions += t.Preemptions
	p.LostNS += t.LostNS
	p.Usage = usage(p.RanNS+t.RanNS, p.LostNS)
	if t.Latency.Certain() {
		p.P99US, p.WaitP99US = larger(p.P99US, t.Latency.Total.P99US), larger(p.WaitP99US, t.Latency.Wait.P99US)
	}
}

func larger(a *float64, b float64) *float64 {
	if a != nil && *a >= b {
		return a
	}
	return &b
}
