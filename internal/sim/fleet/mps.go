// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"math/rand/v2"
	"time"

	"xsched/internal/report"
	"xsched/internal/sim"
)

// This file models MPS with client priorities, which internal/sim does not have. Kernels of all
// clients are in one context: there is no context switch, and a running kernel is never stopped. A
// kernel of a service starts before waiting kernels of batch jobs. As in internal/sim a kernel fills
// the GPU. Faults of one client that end all others are not modelled.

// mps simulates the mix as a server that is never preempted.
func (m *mix) mps() outcome {
	first := 0 // programs are numbered as in scenario
	services := make([]*mpsService, 0, 2)
	for _, one := range []struct {
		shape int
		load  float64
	}{{m.own, m.ownLoad}, {m.other, m.otherLoad}} {
		services = append(services, newMPSService(one.shape, one.load, first))
		if one.load > 0 {
			first++
		}
	}
	length := mixShortest
	if m.ownLoad > 0 {
		length = time.Duration(mixRequests * float64(requestShapes[m.own].length()) / m.ownLoad)
	}
	length = min(max(length, mixShortest), mixLongest)
	warm := length / 20
	var latency report.Histogram
	var kept, now time.Duration
	turn := 0
	for now < length {
		// Equal priority: the services with a waiting kernel take turns.
		var run *mpsService
		for range services {
			turn = (turn + 1) % len(services)
			if services[turn].ready(now) {
				run = services[turn]
				break
			}
		}
		switch {
		case run != nil:
			now += run.shape.kernel
			if arrived, finished := run.ran(); finished && run == services[0] && arrived >= warm {
				latency.Add(uint64(now - arrived))
			}
		case m.batch > 0:
			now += batchKernels[m.kernel]
			if now >= warm {
				kept += batchKernels[m.kernel]
			}
		default:
			now = min(services[0].next, services[1].next)
		}
	}
	out := outcome{kept: min(1, float64(kept)/float64(length-warm))} // the last kernel ends later
	if m.ownLoad > 0 {
		out.p99 = latency.Quantile(0.99) / 1e6
	}
	return out
}

// mpsService is a service that handles one request at a time.
type mpsService struct {
	shape   shape
	mean    float64 // between requests
	random  *rand.Rand
	next    time.Duration   // arrival of the next request
	waiting []time.Duration // arrivals of requests that have not ended
	left    int             // kernels of the first of them
}

// newMPSService returns the service with the arrivals that internal/sim gives the program of this number, so
// that no mode has luckier arrivals than another.
func newMPSService(shape int, load float64, number int) *mpsService {
	s := &mpsService{shape: requestShapes[shape], random: sim.ArrivalStream(mixSeed, number), next: 1 << 62}
	if load > 0 {
		s.mean = float64(s.shape.length()) / load
		s.next = time.Duration(s.mean * s.random.ExpFloat64())
	}
	return s
}

// ready takes in arrivals and reports whether a kernel waits.
func (s *mpsService) ready(now time.Duration) bool {
	for s.next <= now {
		s.waiting = append(s.waiting, s.next)
		s.next += time.Duration(s.mean * s.random.ExpFloat64())
	}
	if len(s.waiting) > 0 && s.left == 0 {
		s.left = s.shape.kernels
	}
	return len(s.waiting) > 0
}

// ran ends a kernel. It reports the arrival of a request that ends with it.
func (s *mpsService) ran() (arrived time.Duration, finished bool) {
	if s.left--; s.left > 0 {
		return 0, false
	}
	arrived = s.waiting[0]
	s.waiting = s.waiting[1:]
	return arrived, true
}
