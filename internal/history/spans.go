// SPDX-License-Identifier: Apache-2.0

package history

import (
	"time"

	"xsched/internal/engine"
	"xsched/internal/model"
)

// piece is a time in one state.
type piece struct {
	from, to model.Time
	state    engine.Activity
}

// span is a piece of a lane in a device's ring.
type span struct {
	from  model.Time
	long  uint32 // length in units of spanUnit
	lane  uint32
	state engine.Activity
}

// spanUnit makes a span of up to 71 minutes fit 32 bits.
const spanUnit = time.Microsecond

// deviceRing holds the spans of a device. It has room for a minute: each lane gets a bucket of time
// in which few pieces are kept as they are. More are replaced by their sum per state, so that the
// number of spans per second is bounded, and the total time in each state stays exact.
type deviceRing struct {
	spans       []span // ring
	first, size int
	active      map[*lane]model.Time // lanes with pieces, and when the last one ended
	bucketTime  time.Duration
	keep        int // pieces of a bucket
	judged      model.Time
}

const (
	bucketTime = time.Second / 16
	keepMost   = 8
	// perBucket spans of all lanes fit into the ring for a minute, with a margin.
	perBucket = MaxSpans * int(bucketTime) / int(SpanTime) * 15 / 16
)

// bucket collects the latest pieces of a lane.
type bucket struct {
	end    model.Time
	pieces [keepMost]piece
	n      int
	folded bool
	sums   [engine.Activities]time.Duration
}

// adapt sets the size of buckets to the number of active lanes.
func (d *deviceRing) adapt(now model.Time) {
	if d.active == nil {
		d.active = map[*lane]model.Time{}
	}
	if d.bucketTime != 0 && now.Sub(d.judged) < time.Second {
		return
	}
	d.judged = now
	for l, at := range d.active {
		if now.Sub(at) > 2*time.Second {
			delete(d.active, l)
		}
	}
	n := max(1, len(d.active))
	d.keep = min(max(perBucket/n, int(engine.Activities)-1), keepMost)
	d.bucketTime = bucketTime * time.Duration((n*d.keep+perBucket-1)/perBucket)
}

// add adds a piece that has ended.
func (d *deviceRing) add(l *lane, p piece) {
	d.adapt(p.to)
	d.active[l] = p.to
	b := &l.bucket
	if b.n > 0 && p.from >= b.end {
		d.flush(l)
	}
	if b.n == 0 {
		*b = bucket{end: p.from.Add(d.bucketTime)}
	}
	b.sums[p.state] += p.to.Sub(p.from)
	if b.n > 0 && b.pieces[b.n-1].state == p.state && b.pieces[b.n-1].to == p.from && !b.folded {
		b.pieces[b.n-1].to = p.to
		return
	}
	if b.n >= d.keep {
		b.folded = true
		return
	}
	b.pieces[b.n] = p
	b.n++
}

// take returns the pieces of a bucket, in order.
func (b *bucket) take(out []piece) []piece {
	if !b.folded {
		return append(out, b.pieces[:b.n]...)
	}
	return appendSums(out, b.pieces[0].from, &b.sums)
}

// appendSums adds one piece per state, one behind the other.
func appendSums(out []piece, at model.Time, sums *[engine.Activities]time.Duration) []piece {
	for s := engine.ActivityRun; int(s) < int(engine.Activities); s++ {
		if sums[s] > 0 {
			out = append(out, piece{at, at.Add(sums[s]), s})
			at = at.Add(sums[s])
		}
	}
	return out
}

// flush moves the bucket of a lane to the ring.
func (d *deviceRing) flush(l *lane) {
	var room [keepMost]piece
	for _, p := range l.bucket.take(room[:0]) {
		d.push(span{p.from, uint32(min(int64(p.to.Sub(p.from)/spanUnit), 1<<32-1)), l.id, p.state})
	}
	l.bucket.n = 0
}

// push adds a span to the ring and overwrites the oldest one if it is full.
func (d *deviceRing) push(s span) {
	if d.size == len(d.spans) && d.size < MaxSpans {
		grown := make([]span, min(max(1024, 2*d.size), MaxSpans))
		for i := range d.size {
			grown[i] = d.spans[(d.first+i)%d.size]
		}
		d.spans, d.first = grown, 0
	}
	if d.size == len(d.spans) {
		d.first = (d.first + 1) % len(d.spans)
		d.size--
	}
	d.spans[(d.first+d.size)%len(d.spans)] = s
	d.size++
}

func (s *span) end() model.Time { return s.from.Add(time.Duration(s.long) * spanUnit) }

// expire drops spans that ended more than a minute ago, and flushes buckets that have passed.
func (d *deviceRing) expire(now model.Time, h *History) {
	for l := range d.active {
		if l.bucket.n > 0 && now >= l.bucket.end && h.byID[l.id] == l {
			d.flush(l)
		}
	}
	for d.size > 0 && now.Sub(d.spans[d.first].end()) > SpanTime+time.Second {
		d.first = (d.first + 1) % len(d.spans)
		d.size--
	}
}
