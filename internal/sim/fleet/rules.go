// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"fmt"
	"math"
	"time"
)

// Rule is how an operator configures sharing. Kubernetes knows shares and memory, not latencies, so
// that the rule has to keep services within their targets.
type Rule struct {
	Name string
	// Slots is the number of pods per GPU, as replicas of a device plugin; 0: by shares.
	Slots int
	// Headroom is a service's share of a GPU relative to its load at the peak.
	Headroom float64
	// BatchShare is the share that a job's claim asks for, of 100.
	BatchShare int
	// HalfMemory lets a job's claim ask for more than half of a GPU's memory, so that a GPU has one job.
	HalfMemory bool
	// Apart keeps batch jobs from GPUs with services.
	Apart bool
}

// whole gives every pod a GPU.
var whole = Rule{Name: "one pod per GPU", Slots: 1}

// Rules lists the configurations that are tried for a way of sharing: the same for all that share. Those by
// shares are as if each could be allocated by consumable capacity; a batch share above 50, or half of the
// memory, puts one job on a GPU. Those by pods are replicas of a device plugin, or XSched's capacity tenants.
// The last rule does not share, because an operator has that choice too.
func Rules(how Sharing) []Rule {
	var out []Rule
	if how == Exclusive {
		return []Rule{whole}
	}
	for _, headroom := range []float64{1, 1.5, 2, 3} {
		out = append(out, Rule{
			Name: fmt.Sprintf("service share %g x peak, batch share 5 and half of the memory", headroom), Headroom: headroom, BatchShare: 5, HalfMemory: true,
		})
		out = append(out, Rule{Name: fmt.Sprintf("service share %g x peak, batch share 51", headroom), Headroom: headroom, BatchShare: 51})
		out = append(out, Rule{Name: fmt.Sprintf("service share %g x peak, batch apart", headroom), Headroom: headroom, BatchShare: 100, Apart: true})
	}
	for _, slots := range []int{4, 3, 2} {
		out = append(out, Rule{Name: fmt.Sprintf("%d pods per GPU", slots), Slots: slots})
		out = append(out, Rule{Name: fmt.Sprintf("%d pods per GPU, services and batch apart", slots), Slots: slots, Apart: true})
	}
	return append(out, whole)
}

// claim is what a pod's resource claim asks for on each GPU.
type claim struct {
	gpus, share, memory int
	service, apart      bool
	whole, half         bool   // takes all, or more than half, of the memory of a GPU
	models              string // of GPUs that it accepts
}

// mostOthers is the largest tabulated load of other services.
const mostOthers = 0.5

// bears reports whether a service has its target next to what the rule lets on its GPU: other services
// and, unless they are apart, the longest kernels. An operator measures that and gives a service that
// does not bear it a GPU of its own.
func (r *Rule) bears(p *Pod, o *Outcomes) bool {
	load, others, jobs := p.Load(), 0.25, min(r.Slots-1, 3)
	room := 1.0 // for the shares of services
	if r.Slots == 0 {
		if jobs = 100 / r.BatchShare; r.HalfMemory {
			jobs = 1
		}
		room -= float64(r.BatchShare) / 100
	}
	if r.Apart {
		jobs, room = 0, 1
	}
	if r.Slots == 0 {
		others = min(max(room/r.Headroom-load, 0), mostOthers)
	}
	worst := o.P99(p.shape, load, 0, 0, len(batchKernels)-1, jobs)
	for shape := 1; shape < len(requestShapes); shape++ {
		worst = max(worst, o.P99(p.shape, load, shape, others, len(batchKernels)-1, jobs))
	}
	return worst <= 1000*p.P99.Seconds()
}

// claim returns the claim of a pod under a rule. A service's share includes the context switches of its
// requests.
func (r *Rule) claim(p *Pod, o *Outcomes, switching time.Duration) claim {
	c := claim{gpus: p.GPUs, share: 100, memory: p.Memory, service: p.Service, apart: r.Apart, models: p.Models}
	switch {
	case r.Slots == 1:
		c.whole = true
	case p.Service && !r.bears(p, o):
	case r.Slots > 1 && p.GPUs == 1: // a gang takes whole GPUs: a device plugin's replica is not a part
		c.share = 100 / r.Slots
	case r.Slots > 1:
	case p.Service:
		c.share = min(100, max(1, int(math.Ceil(100*r.Headroom*(p.Load()+float64(p.Rate*switching.Seconds()))))))
	default:
		c.share, c.half = r.BatchShare, r.HalfMemory
	}
	return c
}
