// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"slices"
	"time"

	"xsched/internal/model"
)

// Service is a process with a latency target, on one device. Its requests are
// those it marks, or its busy periods as long as it has not marked any. The
// engine reports what happens; policies only read the exported fields.
type Service struct {
	PID    int
	Target model.SLO
	// Epoch changes when earlier requests no longer count: the process or its
	// target is new, or it has begun to mark its requests.
	Epoch uint64
	// Busy is the number of its queues with work.
	Busy int
	// Finished are the requests that finished since the last decision.
	Finished []Request

	marked bool
	all    quantile     // of every request in this epoch
	open   []model.Time // requests begun and not finished, oldest first
}

// Request is a finished request of a service.
type Request struct {
	Began model.Time
	Took  time.Duration
}

// maxOpen bounds the requests in progress that are tracked per service.
const maxOpen = 64

// NewService returns a service without history.
func NewService(pid int, target model.SLO, epoch uint64) *Service {
	return &Service{PID: pid, Target: target, Epoch: epoch}
}

// Retarget changes the target. Earlier requests no longer count.
func (s *Service) Retarget(target model.SLO, epoch uint64) {
	s.Target = target
	s.restart(epoch)
}

func (s *Service) restart(epoch uint64) {
	s.Epoch, s.Finished = epoch, nil
	s.all.reset()
}

// SetBusy sets the number of queues with work after queues came or went.
func (s *Service) SetBusy(busy int) {
	s.Busy = busy
	if busy == 0 && !s.marked {
		s.open = s.open[:0] // the queue went with its work
	}
}

// Work reports that a queue of the process got work, or has none any more.
func (s *Service) Work(now model.Time, busy bool) {
	was := s.Busy
	if busy {
		s.Busy++
	} else {
		s.Busy = max(0, s.Busy-1)
	}
	switch {
	case s.marked:
	case was == 0 && s.Busy == 1:
		s.begin(now)
	case was == 1 && s.Busy == 0:
		s.end(now)
	}
}

// Mark reports that the process marks the begin or the end of a request.
// Overlapping requests are taken to end in the order in which they began. epoch
// is the new one if this is the first mark.
func (s *Service) Mark(now model.Time, begin bool, epoch uint64) {
	if !s.marked {
		s.marked, s.open = true, s.open[:0]
		s.restart(epoch)
	}
	if begin {
		s.begin(now)
	} else {
		s.end(now)
	}
}

func (s *Service) begin(now model.Time) {
	if len(s.open) < maxOpen {
		s.open = append(s.open, now)
	}
}

func (s *Service) end(now model.Time) {
	if len(s.open) == 0 {
		return
	}
	r := Request{Began: s.open[0], Took: now.Sub(s.open[0])}
	s.open = slices.Delete(s.open, 0, 1)
	s.all.add(r.Took, s.Target.Latency, s.Target.P())
	s.Finished = append(s.Finished, r)
}

// allowed is the part of the requests that may miss the target.
func (s *Service) allowed() float64 { return (100 - s.Target.P()) / 100 }

// SLOState is whether a target is met.
type SLOState string

// The states of a target.
const (
	SLOLearning SLOState = "learning" // too few requests yet
	SLOMet      SLOState = "met"
	SLOAtRisk   SLOState = "at risk"
	SLOCantMeet SLOState = "can't be met"
)

// SLOStatus is the status of a latency target, for display.
type SLOStatus struct {
	PID      int
	Device   model.DeviceID
	Target   model.SLO
	State    SLOState
	Reason   string        // unless the target is met
	Requests int           // seen so far
	Estimate time.Duration // of the percentile
	Missed   float64       // part of the recent requests above the target
	Room     string        // room left to the other queues; "" unless the policy is SLO
}

const (
	// enough is the minimum number of requests for a verdict.
	enough = 20
	// near is the part of the target that counts as close to it.
	near = 0.9
)

// SLOs appends the status of the latency targets of a device.
func (s *Scheduler) SLOs(v *View, st *State, device model.DeviceID, out []SLOStatus) []SLOStatus {
	control, _ := st.policy.(*sloState)
	for _, service := range slices.Concat(v.Services, v.Overruled) {
		status := SLOStatus{
			PID: service.PID, Device: device, Target: service.Target, Requests: service.all.samples,
			Estimate: service.all.value(service.Target.P()), Missed: service.all.missed(),
		}
		if control != nil {
			status.Room = control.room.String()
		}
		status.State, status.Reason = judge(v, service, control, status.Estimate)
		out = append(out, status)
	}
	return out
}

// judge returns whether a target is met, and the reason if not. control is nil
// unless the policy is SLO.
func judge(v *View, s *Service, control *sloState, estimate time.Duration) (SLOState, string) {
	misses := s.all.missed() > s.allowed()
	switch {
	case s.all.samples < enough:
		return SLOLearning, fmt.Sprintf("%d of %d requests seen", s.all.samples, enough)
	case misses && slices.Contains(v.Overruled, s):
		return SLOAtRisk, "the limit of its user: the target does not count against other users"
	case misses && control == nil:
		return SLOAtRisk, "the policy in force ignores latency targets"
	case misses && !v.CanSuspend:
		return SLOCantMeet, "this mode suspends no other process"
	case misses && control.futile && len(v.Services) > 1:
		return SLOCantMeet, fmt.Sprintf("%d services with targets share the device", len(v.Services))
	case misses && control.futile:
		alone := s.Target.Latency
		if m := control.services[s.PID]; m != nil {
			alone = max(alone, m.minimum)
		}
		return SLOCantMeet, fmt.Sprintf("alone on the device, P%v is %v", s.Target.P(), alone.Round(10*time.Microsecond))
	case misses:
		return SLOAtRisk, fmt.Sprintf("%.1f %% of the requests miss it", 100*s.all.missed())
	case float64(estimate) > near*float64(s.Target.Latency):
		return SLOAtRisk, fmt.Sprintf("P%v is %v", s.Target.P(), estimate.Round(10*time.Microsecond))
	}
	return SLOMet, ""
}
