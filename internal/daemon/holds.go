// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"xsched/internal/control"
	"xsched/internal/health"
	"xsched/internal/loop"
	"xsched/internal/model"
)

// holds are the groups of pods that shall be suspended on all nodes together. They are not kept: a new
// daemon resumes everybody, and the sources send their holds again.
type holds struct {
	log    *slog.Logger
	access *access
	wake   chan struct{} // they have changed

	mu      sync.Mutex
	sources map[string][]hold
}

// hold is a hold by the monotonic clock, so that a step of the wall clock does not extend it.
type hold struct {
	control.Hold
	from, until time.Time
}

func newHolds(log *slog.Logger, a *access) *holds {
	return &holds{log: log, access: a, wake: make(chan struct{}, 1), sources: map[string][]hold{}}
}

// Holds implements control.Control.
func (h *holds) Holds(_ context.Context, c control.Caller, r control.HoldsRequest) (control.HoldsReply, error) {
	if err := h.access.owner(c, changeHolds); err != nil {
		return control.HoldsReply{}, err
	}
	now := time.Now()
	h.mu.Lock()
	defer h.mu.Unlock()
	if r.Source == "" {
		return h.reply(now), nil
	}
	if err := r.Check(now); err != nil {
		return control.HoldsReply{}, err
	}
	next := maps.Clone(h.sources)
	delete(next, r.Source)
	for _, one := range r.Holds {
		next[r.Source] = append(next[r.Source], hold{
			one, now.Add(time.Duration(one.FromNS - now.UnixNano())), now.Add(time.Duration(one.UntilNS - now.UnixNano())),
		})
	}
	total := 0
	for _, all := range next {
		total += len(all)
	}
	if total > control.MaxHolds || len(next) > control.MaxHoldSources {
		return control.HoldsReply{}, control.Errorf(control.ErrInvalid, "end other holds first", "%d holds of %d sources are too many: at most %d of %d are possible",
			total, len(next), control.MaxHolds, control.MaxHoldSources)
	}
	h.sources = next
	select {
	case h.wake <- struct{}{}:
	default:
	}
	return h.reply(now), nil
}

// reply lists the holds that have not ended. Preconditions: h.mu is held.
func (h *holds) reply(now time.Time) control.HoldsReply {
	out := control.HoldsReply{Holds: []control.HoldEntry{}}
	for _, source := range slices.Sorted(maps.Keys(h.sources)) {
		for _, one := range h.sources[source] {
			if now.Before(one.until) {
				out.Holds = append(out.Holds, control.HoldEntry{Source: source, Hold: one.Hold, Held: !now.Before(one.from)})
			}
		}
	}
	return out
}

// at returns the groups that are held at a moment, and the time until that changes.
func (h *holds) at(now time.Time) (loop.HeldGroups, time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	groups, next := loop.HeldGroups{}, time.Hour
	for source, all := range h.sources {
		all = slices.DeleteFunc(slices.Clone(all), func(one hold) bool { return !now.Before(one.until) })
		if h.sources[source] = all; len(all) == 0 {
			delete(h.sources, source)
		}
		for _, one := range all {
			if wait := one.from.Sub(now); wait > 0 {
				next = min(next, wait)
				continue
			}
			next = min(next, one.until.Sub(now))
			name, most := one.Namespace+"/"+one.Group, model.PriorityMax
			if one.Priority != nil {
				most = model.Priority(min(*one.Priority, int32(model.PriorityMax)))
			}
			if was, held := groups[name]; !held || was < most {
				groups[name] = most
			}
		}
	}
	return groups, next
}

// holdRetry is the time after which a change that the loop did not take is tried again.
const holdRetry = 50 * time.Millisecond

// run begins and ends holds at their moments, until ctx ends.
func (h *holds) run(ctx context.Context, part *health.Part) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	held := loop.HeldGroups{}
	for {
		part.End()
		select {
		case <-ctx.Done():
			return
		case <-h.wake:
		case <-timer.C:
		}
		part.Begin()
		groups, next := h.at(time.Now())
		if !maps.Equal(groups, held) {
			once, cancel := context.WithTimeout(ctx, answerTime)
			err := h.access.loop.HoldGroups(once, groups)
			cancel()
			if err == nil {
				held = groups
				h.log.Debug("groups held", "groups", strings.Join(slices.Sorted(maps.Keys(groups)), " "))
			} else {
				next = min(next, holdRetry)
			}
		}
		timer.Reset(next)
	}
}
