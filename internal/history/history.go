// SPDX-License-Identifier: Apache-2.0

// Package history keeps what programs did on each GPU: spans of the last minute, one point per second
// of the last two minutes and one per 30 seconds of the last hour, and who preempted whom. It reads
// the engine's transitions from a record.Trace on a goroutine of its own.
//
// Memory is bounded: at most MaxLanes lanes of about 6 KiB, and MaxSpans spans of 24 bytes for each
// of MaxDevices GPUs. docs/operations.md states the sums.
package history

import (
	"slices"
	"sync"
	"time"

	"xsched/internal/engine"
	"xsched/internal/identity"
	"xsched/internal/loop"
	"xsched/internal/model"
	"xsched/internal/record"
)

// Bounds of a history.
const (
	MaxDevices = 16
	MaxLanes   = 1024
	MaxSpans   = 1 << 16 // of a GPU
	SpanTime   = time.Minute
	// Points of each series.
	FineStep, CoarseStep = time.Second, 30 * time.Second
	points               = 120
	maxQueues            = 1 << 16
)

// History is safe for concurrent use.
type History struct {
	trace *record.Trace

	mu       sync.Mutex
	lost     uint64 // of the trace, as last seen
	resync   bool   // transitions were lost: the next sample sets the states
	complete model.Time
	lanes    map[laneKey]*lane
	byID     map[uint32]*lane // of those and of spans in the rings
	nextID   uint32
	perUser  map[identity.User]int // lanes, by account
	skipped  uint64                // programs without a lane
	queues   map[model.QueueID]queueState
	programs map[model.SessionID]loop.Identity // alive
	byPID    map[int]loop.Identity
	devices  map[model.DeviceID]*deviceRing
	step     int64 // the last fine step with a point
	sampled  model.Time
	pairs    pairs
}

type laneKey struct {
	session model.SessionID
	device  model.DeviceID
}

type queueState struct {
	lane     *lane // nil: not recorded
	activity engine.Activity
}

// New returns an empty history that reads from trace.
func New(trace *record.Trace, now model.Time) *History {
	return &History{
		trace: trace, complete: now, lanes: map[laneKey]*lane{}, byID: map[uint32]*lane{}, perUser: map[identity.User]int{},
		queues: map[model.QueueID]queueState{}, programs: map[model.SessionID]loop.Identity{}, byPID: map[int]loop.Identity{},
		devices: map[model.DeviceID]*deviceRing{}, step: int64(now) / int64(FineStep), sampled: now, pairs: pairs{},
	}
}

// Joined makes a program known by name.
func (h *History) Joined(who loop.Identity) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.programs[who.ID], h.byPID[who.PID] = who, who
	for _, l := range h.lanes {
		if l.key.session == who.ID {
			l.who, l.left = who, 0
		}
	}
}

// Left forgets a program that has ended; its past stays. The engine may report about it a while longer.
func (h *History) Left(now model.Time, who loop.Identity) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.take(now) // what it did so far, while it has a name
	delete(h.programs, who.ID)
	if h.byPID[who.PID].ID == who.ID {
		delete(h.byPID, who.PID)
	}
	for _, l := range h.lanes {
		if l.key.session == who.ID {
			l.left = now
		}
	}
}

// Take reads the trace up to now.
func (h *History) Take(now model.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.take(now)
}

func (h *History) take(now model.Time) {
	h.trace.Take(func(t *engine.Transition) { h.apply(t) })
	if lost := h.trace.Lost(); lost != h.lost {
		h.lost, h.resync = lost, true
	}
	for _, d := range h.devices {
		d.expire(now, h)
	}
}

// apply brings a queue and its lane to a new activity.
func (h *History) apply(t *engine.Transition) {
	q, known := h.queues[t.ID]
	if t.Gone {
		if known {
			delete(h.queues, t.ID)
			h.move(q.lane, t.At, q.activity, engine.ActivityIdle, 0)
		}
		return
	}
	if !known {
		if t.To == engine.ActivityIdle || len(h.queues) >= maxQueues {
			return
		}
		q = queueState{lane: h.lane(t.At, t.ID.Session, t.PID, t.Device)}
	}
	was := q.activity
	q.activity = t.To
	h.queues[t.ID] = q
	h.move(q.lane, t.At, was, t.To, t.By)
}

// move changes the activity of one queue of a lane. A lane runs if one of its queues does.
func (h *History) move(l *lane, at model.Time, from, to engine.Activity, by int) {
	if l == nil || from == to {
		return
	}
	if from != engine.ActivityIdle {
		l.counts[from]--
	}
	if to != engine.ActivityIdle {
		l.counts[to]++
	}
	now := engine.ActivityIdle
	for _, a := range []engine.Activity{engine.ActivityRun, engine.ActivityStopped, engine.ActivityWait} {
		if l.counts[a] > 0 {
			now = a
			break
		}
	}
	if now == l.state {
		return
	}
	at = max(at, l.since)
	h.finish(l, at)
	if l.state == engine.ActivityIdle {
		l.busy = at
	} else if now == engine.ActivityIdle {
		l.request(at.Sub(l.busy))
	}
	l.state, l.since, l.by = now, at, by
}

// finish ends the current span of a lane.
func (h *History) finish(l *lane, at model.Time) {
	if l.state == engine.ActivityIdle || at <= l.since {
		return
	}
	if d := h.devices[l.key.device]; d != nil {
		d.add(l, piece{l.since, at, l.state})
	}
	l.wait(at, h.sampled)
	if l.state != engine.ActivityRun && l.by != 0 {
		h.preempted(l, at)
	}
}

// lane returns the lane of a program on a device; nil if the bounds leave none.
func (h *History) lane(now model.Time, session model.SessionID, pid int, device model.DeviceID) *lane {
	key := laneKey{session, device}
	if l := h.lanes[key]; l != nil {
		return l
	}
	who, ok := h.programs[session]
	if !ok {
		who = loop.Identity{ID: session, PID: pid, LocalPID: pid, User: identity.Nobody}
	}
	account := who.User.Account()
	if h.devices[device] == nil && len(h.devices) >= MaxDevices && !h.evictDevice(account) || len(h.lanes) >= MaxLanes && !h.evict(account) {
		h.skipped++
		return nil
	}
	if h.devices[device] == nil {
		h.devices[device] = &deviceRing{}
	}
	h.nextID++
	l := &lane{key: key, id: h.nextID, who: who, account: account, since: now}
	if !ok {
		l.left = now // else nobody would end the lane
	}
	h.lanes[key], h.byID[l.id] = l, l
	h.perUser[account]++
	return l
}

// evict removes a lane to make room for one of a user: that of a program which has ended, first of the
// user that has most lanes, so that nobody displaces the past of others with many short programs. If all
// programs run, the user with most lanes loses one, unless that is the newcomer.
func (h *History) evict(newcomer identity.User) bool {
	most, n := newcomer, h.perUser[newcomer]
	for user, k := range h.perUser {
		if k > n {
			most, n = user, k
		}
	}
	var oldest, youngest *lane
	for _, l := range h.lanes {
		if l.left == 0 {
			if l.account == most && (youngest == nil || l.id > youngest.id) {
				youngest = l
			}
			continue
		}
		first := oldest == nil || (l.account == most) != (oldest.account == most)
		if first && (oldest == nil || l.account == most) || !first && l.left < oldest.left {
			oldest = l
		}
	}
	if oldest == nil && most != newcomer {
		oldest = youngest
	}
	if oldest == nil {
		return false
	}
	h.drop(oldest)
	return true
}

// evictDevice removes the ring of a device to make room for one of a user. Programs name their devices,
// so one without a program comes first, and then one that a single user has alone: of the user with most
// such devices, so that nobody displaces the GPUs of others. The newcomer itself only loses a device on
// which all its programs have ended.
func (h *History) evictDevice(newcomer identity.User) bool {
	alone, shared := map[model.DeviceID]identity.User{}, map[model.DeviceID]bool{}
	latest, running := map[model.DeviceID]uint32{}, map[model.DeviceID]bool{} // its youngest lane
	for _, l := range h.lanes {
		gpu := l.key.device
		if user, known := alone[gpu]; known && user != l.account {
			shared[gpu] = true
		}
		alone[gpu], latest[gpu] = l.account, max(latest[gpu], l.id)
		running[gpu] = running[gpu] || l.left == 0
	}
	counts := map[identity.User]int{}
	most := newcomer
	for gpu := range h.devices {
		if _, used := alone[gpu]; !used {
			delete(h.devices, gpu)
			return true
		}
		if user := alone[gpu]; !shared[gpu] {
			if counts[user]++; counts[user] > counts[most] {
				most = user
			}
		}
	}
	var victim model.DeviceID
	for gpu, user := range alone {
		if user == most && !shared[gpu] && !(most == newcomer && running[gpu]) && (victim == 0 || latest[gpu] > latest[victim]) {
			victim = gpu
		}
	}
	for _, l := range h.lanes {
		if l.key.device == victim {
			h.drop(l)
		}
	}
	delete(h.devices, victim)
	return victim != 0
}

func (h *History) drop(l *lane) {
	delete(h.lanes, l.key)
	delete(h.byID, l.id) // its spans are not shown any more
	if h.perUser[l.account]--; h.perUser[l.account] == 0 {
		delete(h.perUser, l.account)
	}
	for id, q := range h.queues {
		if q.lane == l {
			delete(h.queues, id)
		}
	}
}

// Skipped returns how many programs were not recorded, because there are too many.
func (h *History) Skipped() uint64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.skipped
}

// sortedLanes returns the lanes of a device, oldest first.
func (h *History) sortedLanes(device model.DeviceID) []*lane {
	var out []*lane
	for _, l := range h.lanes {
		if l.key.device == device {
			out = append(out, l)
		}
	}
	slices.SortFunc(out, func(a, b *lane) int { return int(a.id) - int(b.id) })
	return out
}
