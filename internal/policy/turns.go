// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"cmp"
	"time"

	"xsched/internal/model"
)

// turn is the state of a policy that serves one queue at a time: which queue
// has the turn, and how much of it is used.
type turn struct {
	queue  model.QueueID
	start  time.Duration // Queue.Active when the turn began
	paused bool          // the last plan did not run the queue
	rhythm rhythm        // of the highs
}

// begin starts a new turn of a queue.
func (t *turn) begin(q *Queue) { t.queue, t.start, t.paused = q.ID, q.Active, false }

// resume continues the turn of a queue. If another rule, such as a grant, allowed
// the queue to run, its turn began then.
func (t *turn) resume(q *Queue) {
	if t.queue != q.ID || t.paused && q.Running {
		t.queue, t.start = q.ID, q.ActiveAtStart
	}
	t.paused = false
}

// used returns how much of its turn a queue has used. Time in which it could
// not progress does not count.
func (t turn) used(q *Queue) time.Duration {
	t.resume(q)
	return q.Active - t.start
}

// rhythm is when requests ended, and how often they do.
type rhythm struct {
	last   model.Time
	period time.Duration
}

// pauseGap is a pause of the program, and says nothing about how often requests end in between.
const pauseGap = 250 * time.Millisecond

// follow adds the end of the last request; 0: none.
func (r *rhythm) follow(end model.Time) {
	if end <= r.last {
		return
	}
	switch gap := end.Sub(r.last); {
	case r.last == 0 || gap > pauseGap:
	case r.period == 0:
		r.period = gap
	default:
		r.period += (gap - r.period) / 8
	}
	r.last = end
}

// key orders queues: the smallest is served first.
type key struct{ class, at, then int64 }

func (k key) before(o key) bool {
	return cmp.Or(cmp.Compare(k.class, o.class), cmp.Compare(k.at, o.at), cmp.Compare(k.then, o.then)) < 0
}

// turns is how a policy serves the queues of a device one at a time, the
// smallest key first. At most one queue is allowed to run, idle or not: it meets
// no other on the chip, and a hand-over is one suspend and one resume however
// many queues there are.
type turns struct {
	key func(i int, q *Queue) key
	// preempt: a ready queue with a smaller key takes the turn at once; with
	// byClass only one of a smaller class.
	preempt, byClass bool
	// compete: at the end of a turn its holder may win again. Otherwise it goes
	// behind the others.
	compete bool
	// length of a turn while others are ready; nil: until its holder goes idle.
	length func(i int, q *Queue) time.Duration
	// hold keeps a turn over a short gap.
	hold bool
}

// decide returns the plan, the queue with the turn (-1: none is admitted) and
// when to ask again.
func (p *turns) decide(now model.Time, v *View, t *turn) (model.Plan, int, model.Time) {
	n := len(v.Queues)
	first := v.next(0, n, admitted)
	if first < 0 {
		return v.all(model.Verdict{}), -1, model.Never
	}
	rest := model.Verdict{Limit: v.several(first, n, 1, admitted)}
	plan := v.all(rest)
	cur := -1
	if v.CanSuspend {
		cur = p.holder(v, t)
	}
	i, wake := p.pick(now, v, t, first, cur)
	if i == cur {
		t.resume(&v.Queues[i])
	} else {
		t.begin(&v.Queues[i]) // even if it ran beside others, under another policy
	}
	plan[i] = model.Verdict{Run: true, Limit: rest.Limit}
	if !v.CanSuspend {
		plan[i].Slice = v.longest(first) // the others run too: outlast them
	}
	return plan, i, wake
}

// pick chooses which queue has the turn after cur, and when to ask again. Where
// all queues run, none has had the turn and cur is -1.
func (p *turns) pick(now model.Time, v *View, t *turn, first, cur int) (int, model.Time) {
	best := p.least(v, ready)
	switch {
	case best < 0 && cur < 0:
		return first, model.Never
	case best < 0:
		return cur, model.Never
	case cur < 0:
		return best, p.ends(now, v, best, 0)
	case !v.Queues[cur].Ready:
		if end := v.Queues[cur].ChangedAt.Add(v.Knobs.Hold); p.hold && now < end && !p.overtakes(v, best, cur) {
			return cur, end
		}
		return best, p.ends(now, v, best, 0)
	case p.overtakes(v, best, cur):
		return best, p.ends(now, v, best, 0)
	}
	if end := p.ends(now, v, cur, t.used(&v.Queues[cur])); now < end {
		return cur, end
	}
	if !p.compete {
		if best = p.least(v, v.others(cur, ready)); best < 0 {
			return cur, model.Never
		}
		if p.overtakes(v, cur, best) {
			return cur, p.ends(now, v, cur, 0) // the others are all behind it
		}
	}
	return best, p.ends(now, v, best, 0)
}

// holder returns the queue that has the turn. If that is gone, or another policy
// was in force, it is the running queue, with work and the smallest key if there
// are several; -1: none.
func (p *turns) holder(v *View, t *turn) int {
	if i := v.find(t.queue); i >= 0 && v.Queues[i].Running && v.Queues[i].Admitted {
		return i
	}
	if i := p.least(v, func(q *Queue) bool { return q.Ready && q.Running }); i >= 0 {
		return i
	}
	return v.running(0)
}

// least returns the queue with the smallest key of those that satisfy is, the
// first of equals; -1 if there is none.
func (p *turns) least(v *View, is func(*Queue) bool) int {
	best, least := -1, key{}
	for i := range v.Queues {
		q := &v.Queues[i]
		if !is(q) {
			continue
		}
		if k := p.key(i, q); best < 0 || k.before(least) {
			best, least = i, k
		}
	}
	return best
}

// overtakes reports that a queue may take the turn from its holder.
func (p *turns) overtakes(v *View, i, holder int) bool {
	if !p.preempt {
		return false
	}
	a, b := p.key(i, &v.Queues[i]), p.key(holder, &v.Queues[holder])
	if p.byClass {
		return a.class < b.class
	}
	return a.before(b)
}

// ends returns when the turn of queue i ends, of which a part is used.
func (p *turns) ends(now model.Time, v *View, i int, used time.Duration) model.Time {
	if p.length == nil || !v.several(0, len(v.Queues), 1, ready) {
		return model.Never
	}
	return now.Add(p.length(i, &v.Queues[i]) - used)
}

// longest is the slice of a queue that comes before all others from first on.
// Where several of those cannot be suspended, it leaves them some progress.
func (v *View) longest(first int) time.Duration {
	if !v.CanSuspend && v.several(first, len(v.Queues), 2, admitted) {
		return min(v.Knobs.HighSlice, v.Knobs.ShareMax)
	}
	return v.Knobs.HighSlice
}

// others restricts a condition to queues other than i and those that run with it.
func (v *View) others(i int, is func(*Queue) bool) func(*Queue) bool {
	id, group := v.Queues[i].ID, v.Queues[i].Group
	return func(q *Queue) bool { return is(q) && q.ID != id && (group < 0 || q.Group != group) }
}

// turnLength is how long a queue keeps its turn.
func (v *View) turnLength(q *Queue) time.Duration {
	if s := q.Hint.Timeslice; s > 0 {
		return s
	}
	return v.Knobs.Quantum
}
