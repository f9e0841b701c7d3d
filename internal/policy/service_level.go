// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"time"

	"xsched/internal/model"
)

// Service is a process with a latency target, on one device. Its requests are
// what it marks, or its busy periods as long as it has not marked any.
type Service struct {
	PID    int
	Target model.SLO

	all    quantile // every request
	here   quantile // those that began and ended under the room in force
	base   time.Duration
	tight  time.Duration // as base, with nobody beside it
	busy   int           // queues with work
	marked bool

	open  [64]model.Time // requests begun and not ended, oldest first
	first int
	count int
}

// SLOState is how a target stands.
type SLOState string

// The states of a target.
const (
	SLOLearning SLOState = "learning" // too few requests yet
	SLOMet      SLOState = "met"
	SLOAtRisk   SLOState = "at risk"
	SLOCantMeet SLOState = "can't be met"
)

// SLOStatus is a target and how it stands, for people to look at.
type SLOStatus struct {
	PID      int
	Device   model.DeviceID
	Target   model.SLO
	State    SLOState
	Reason   string        // of anything but met
	Requests int           // seen so far
	Estimate time.Duration // of the percentile
	Missed   float64       // part of the recent requests above the target
	Room     string        // what the others have beside it
}

const (
	// enough requests to say anything.
	enough = 20
	// near is which part of the target counts as close to it.
	near = 0.9
)

// relateServices keeps the services of the processes that have a target.
func (v *View) relateServices() {
	kept := v.Services[:0]
	for _, s := range v.Services {
		if i, here := v.pids[s.PID]; here {
			if t := v.Queues[i].Hint.SLO; t.Said() {
				if t != s.Target {
					s.Target = t
					s.all.reset()
					s.here.reset()
				}
				kept = append(kept, s)
			}
		}
	}
	v.Services = kept
	for i := range v.Queues {
		q := &v.Queues[i]
		if q.Hint.SLO.Said() && v.service(q.PID) == nil {
			v.Services = append(v.Services, &Service{PID: q.PID, Target: q.Hint.SLO})
		}
	}
	for _, s := range v.Services {
		s.busy = 0
		for i := range v.Queues {
			s.busy += b2i(v.Queues[i].PID == s.PID && v.Queues[i].Busy)
		}
		if s.busy == 0 && !s.marked {
			s.count = 0 // the queue went with its work
		}
	}
}

func (v *View) service(pid int) *Service {
	for _, s := range v.Services {
		if s.PID == pid {
			return s
		}
	}
	return nil
}

// Worked notes that a queue of a process has work, or has none any more.
func (v *View) Worked(now model.Time, pid int, busy bool) {
	s := v.service(pid)
	if s == nil {
		return
	}
	was := s.busy
	s.busy = max(0, s.busy-1+2*b2i(busy))
	if s.marked {
		return
	}
	if was == 0 && s.busy == 1 {
		s.begin(now)
	} else if was == 1 && s.busy == 0 {
		s.end(now, v)
	}
}

// Mark notes that a process says where a request begins or ends. Requests that
// overlap are taken to end in the order in which they began.
func (v *View) Mark(now model.Time, pid int, begin bool) {
	s := v.service(pid)
	if s == nil {
		return
	}
	if !s.marked {
		s.marked, s.count = true, 0
		s.all.reset()
		s.here.reset()
	}
	if begin {
		s.begin(now)
	} else {
		s.end(now, v)
	}
}

func (s *Service) begin(now model.Time) {
	if s.count < len(s.open) {
		s.open[(s.first+s.count)%len(s.open)] = now
		s.count++
	}
}

func (s *Service) end(now model.Time, v *View) {
	if s.count == 0 {
		return
	}
	began := s.open[s.first]
	s.first, s.count = (s.first+1)%len(s.open), s.count-1
	took := now.Sub(began)
	s.all.add(took, s.Target.Latency, s.Target.P())
	if began >= v.control.since {
		s.here.add(took, s.Target.Latency, s.Target.P())
	}
	v.control.fresh = true
}

// allowed is the part of the requests that may miss the target.
func (s *Service) allowed() float64 { return (100 - s.Target.P()) / 100 }

// SLOs appends how the targets of this device stand.
func (v *View) SLOs(device model.DeviceID, out []SLOStatus) []SLOStatus {
	for _, s := range v.Services {
		st := SLOStatus{
			PID: s.PID, Device: device, Target: s.Target, Requests: s.all.samples,
			Estimate: s.all.value(s.Target.P()), Missed: s.all.missed(), Room: v.control.room.String(),
		}
		st.State, st.Reason = v.judge(s, st.Estimate)
		out = append(out, st)
	}
	return out
}

func (v *View) judge(s *Service, estimate time.Duration) (SLOState, string) {
	controls := v.sched != nil && v.sched.Name() == "SLO"
	misses := s.all.missed() > s.allowed()
	switch {
	case s.all.samples < enough:
		return SLOLearning, fmt.Sprintf("%d of %d requests seen", s.all.samples, enough)
	case misses && !controls:
		return SLOAtRisk, "the policy in force does not look at targets"
	case misses && !v.CanSuspend:
		return SLOCantMeet, "in this mode nobody may be stopped for it"
	case misses && v.control.futile && len(v.Services) > 1:
		return SLOCantMeet, fmt.Sprintf("%d services with targets share the device", len(v.Services))
	case misses && v.control.futile:
		return SLOCantMeet, fmt.Sprintf("with nobody beside it P%v is %v", s.Target.P(), max(s.tight, s.Target.Latency).Round(10*time.Microsecond))
	case misses:
		return SLOAtRisk, fmt.Sprintf("%.1f %% of the requests miss it", 100*s.all.missed())
	case float64(estimate) > near*float64(s.Target.Latency):
		return SLOAtRisk, fmt.Sprintf("P%v is %v", s.Target.P(), estimate.Round(10*time.Microsecond))
	}
	return SLOMet, ""
}
