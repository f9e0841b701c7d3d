// SPDX-License-Identifier: Apache-2.0

package model

import "time"

// A segment is what a program submits between the end of one wait and the beginning of the next. The
// Segments of a program predict when it will wait, from the number of its launches and their pace.
//
// All input comes from the program. Nonsense changes only its own protection: memory and time per call
// are constant, and a stop has a limit.

const (
	// FedMin: a shorter segment ends before a stop takes effect.
	FedMin = time.Millisecond
	// FedHold is how long a stop outlasts a segment under strategies that learn no gaps.
	FedHold = 200 * time.Microsecond

	// A segment that begins within FollowGap of the last one follows it. It belongs to the same request, as the
	// tokens of a language model do, or a value that is read back, unless its size says something else: see
	// settle. After chainMax of them a program never pauses, and each is a request. Answers of a language model
	// are long, so it takes chainLong of them to doubt a class.
	FollowGap = time.Millisecond
	chainMax  = 64
	chainLong = 1024
	// After latesMax late segments with no beginning of a request between them, each is a request.
	latesMax = 64
	// After largesMax segments that follow, but are far larger than the others that do, and of another size than
	// the known prompts, such a segment is a prompt: the program does something else now.
	largesMax = 4
	// A stop outlasts a segment if the next one follows with this probability. A launch-bound program is
	// stopped for anyway; for others the stop has to be worth its price.
	followsFed, followsAny = 0.25, 0.5
	holdSlack              = 100 * time.Microsecond

	// SegmentGap ends a segment for whose end no thread waited.
	SegmentGap = 5 * time.Millisecond
	// segmentMax is beyond every request: the program does not wait for its work.
	segmentMax = 10 * time.Second

	// Evidence for a class: segments of the other class count double. enough makes a class, and none
	// left ends it. Each change of class costs driver calls.
	evidenceEnough = 3
	evidenceMax    = 6
	shortsMax      = 16 // segments below FedMin in a row end a class

	// A launch-bound program launches all the time. Fewer launches mean that it waits in a way that
	// nothing reports.
	launchesMin = 8
	launchPace  = 500 * time.Microsecond
	// fedTail is for how long a launch-bound program may wait for its last kernels, beside a sixth of its
	// submission time. One that waits longer keeps the device busy, and lower queues would delay it.
	fedTail = 300 * time.Microsecond
	// doubtFirst segments count nothing for launch-bound after the class was taken back, and twice as many
	// each further time. Doubt ends with otherMax segments in a row that are less than half or more than
	// twice as large as the doubted one: the program does something else now.
	doubtFirst, doubtMax = 256, 1 << 14
	otherMax             = 16

	// The lead is how long before the predicted wait to stop lower queues. It begins at leadFirst. A late stop
	// adds leadStep, and one in time removes a 10th of that, after a quick first search. So 10 % of the stops
	// are late, by less than a step mostly. With 5 %, lower queues would lose up to three points more; requests
	// of 3 ms would gain up to 2 % at the 99th percentile, longer ones less. A stop and what has piled up by then
	// take less than leadEnough: a wait that is long after such a lead is long for another reason.
	leadFirst  = 2 * time.Millisecond
	leadEnough = leadFirst
	leadMin    = 100 * time.Microsecond
	leadMax    = 3 * time.Millisecond
	leadStep   = 200 * time.Microsecond
	leadEase   = leadStep / 10

	// A wait that is longer than the shortest ones by a quarter and tailSlack is longer than it has to be.
	tailSlack = 50 * time.Microsecond
	noiseMax  = 100 * time.Microsecond
	// A stop is late only if the segment also ends later than usual. One that is shorter than expected may
	// meet a stop that has just begun: it still ends no later than others, and a lead that avoids that would
	// cost lower queues more than the request gains.

	// nativeWait is what the driver's own sharing adds to the end of a request at most: a slice of
	// another process and the switches.
	nativeWait = 2500 * time.Microsecond

	// patience is how long a stop lasts beyond the predicted wait.
	patience = time.Millisecond
	// stopMax limits a stop before the wait.
	stopMax = leadMax + 2*patience
	// waitMax, and half the submission time up to a second, limit a stop for a wait: a launch-bound program
	// waits for less. After it the program counts as any other: it may be halted, and can't report that its
	// work is done.
	waitMax = 20 * time.Millisecond
	// wholeMax is up to which length lower queues are stopped for a whole segment where the library is
	// too old to count launches. Such a library may also take some waits for submissions.
	wholeMax = 8 * time.Millisecond

	// unseenMax segments are followed closely after one whose end was not seen.
	unseenMax = 64

	history   = 16
	lags      = 8
	maxChecks = 8
	checkGap  = 2 * time.Millisecond // a check must be worth a wake-up
	checkSoon = 50 * time.Microsecond
	// A CPU's speed changes within a segment, and threads stall: a stop that is further ahead is predicted again.
	checkAhead = time.Millisecond

	// Prediction is good until less than hitsLow of the stops are of use, and again from hitsHigh on.
	hitsLow, hitsHigh = 0.5, 0.75
)

// Segments is the history of a program's segments. The zero value is that of a new one.
type Segments struct {
	class    Class
	evidence int8
	shorts   int8
	doubt    int // segments that count nothing for launch-bound
	doubted  int // the last value
	doubtOf  uint32
	others   int8 // segments of other sizes in a row
	counted  bool // sizes are launches; else microseconds

	// The first segment of a request, and those that follow it, differ: a prompt and its tokens.
	first, next sizes
	follow      [8]float32    // probability that another one follows the first, second and so on
	gap         time.Duration // mean time until it does

	lead  time.Duration
	eased bool // a late stop ended the quick search for a shorter lead
	// floor is a low quantile of the time from a wait to its end. It rises slowly, so that late stops do
	// not become the rule.
	floor time.Duration
	noise time.Duration // by how much waits vary without lower queues
	hits  float32
	poor  bool

	counts SegmentCounts
	batch  Batching
	// gathered: the kernels of the segment waited on the device for each other.
	gathered bool

	// The current segment.
	open, waits  bool
	follows      bool    // it belongs to the request of the last one
	large        bool    // it follows, but is larger than those that do: a prompt is expected
	likely       float32 // probability that it would follow
	lates        int8    // segments that came late since the last request began
	larges       int8    // segments that followed, and were far larger than the others, since then
	chain, was   int     // segments before it in this request; of the last segment
	began, ended Time    // ended: of the last one
	waitAt       Time    // when a thread began to wait, if that was reported; 0: it was not
	waitCount    uint64  // launches then
	unseen       int8    // segments to follow closely
	paused       Time    // since when the device is idle and nobody waits; 0: it is not
	base, count  uint64
	expect       uint32
	usual        time.Duration // expected submission time when it began
	checks       int8
	checked      Time
	checkedCount uint64        // launches then
	hidden       bool          // it waits, but nothing reports that
	left         time.Duration // predicted at checked
	recent       float64       // pace between the last two checks, ns per launch; 0: too few launches
	stopAt       Time          // 0: not yet, Never: not in this segment
	until        Time
	checkAt      Time
	stopped      Time // when the first stop of this segment began, even if not in force; 0: none
	gaveUp       bool
	whole        bool // stopped from its beginning
	overdue      bool // it waits for too long
}

// SegmentState is what is known about a program's segments, for display.
type SegmentState struct {
	Class Class
	Known int // segments learnt from
	// Lead is how long before the predicted wait lower queues are stopped.
	Lead time.Duration
	// Hits is the part of the predictions that were of use. Without Predicted it is too small to act on.
	Hits      float64
	Predicted bool
	Counts    SegmentCounts
}

// SegmentCounts counts the segments of a launch-bound program by how their stop was.
type SegmentCounts struct {
	InTime  uint64 // in force at the wait
	Late    uint64
	Early   uint64 // given up before the wait
	Unaided uint64 // at the wait, because the prediction is too poor
}

// Class returns the class of the program.
func (s *Segments) Class() Class { return s.class }

// State returns what is known.
func (s *Segments) State() SegmentState {
	n := s.first.n + s.next.n
	return SegmentState{Class: s.class, Known: n, Lead: s.lead, Hits: float64(s.hits), Predicted: n > 0 && !s.poor, Counts: s.counts}
}

// Feeding returns what a policy needs to know.
func (s *Segments) Feeding() Feeding {
	f := Feeding{Class: s.class, Batch: s.batch.On, Waits: s.open && s.waits, Paused: s.open && s.paused != 0, Hold: s.hold()}
	if s.class != ClassLaunchBound {
		return f
	}
	if s.overdue {
		f.Class = ClassUnknown
		return f
	}
	if s.paused != 0 || !s.open { // without work, time shows nothing
		return f
	}
	if s.stopAt != 0 && s.stopAt != Never && (!s.poor || s.waits) {
		f.StopAt, f.StopUntil = s.stopAt, s.until
	}
	f.CheckAt = s.checkAt
	return f
}

// Begin reports that the program submits work to an idle device, after this many launches.
func (s *Segments) Begin(now Time, launches uint64) {
	if s.open && !s.waits && s.paused != 0 && now.Sub(s.paused) < SegmentGap {
		s.shift(max(0, now.Sub(s.paused)))
		if s.paused = 0; s.checkAt != 0 {
			s.checkAt = max(s.checkAt, now.Add(checkSoon))
		}
		return
	}
	held := s.joins(now)
	s.open, s.waits, s.paused = true, false, 0
	if launches < s.count || launches > s.count+1 {
		s.count = launches
	} // else the first launch of this segment may be among them
	s.began, s.base = now, s.count
	s.checks, s.checked, s.checkedCount, s.left, s.recent, s.hidden = 0, 0, launches, 0, 0, false
	s.stopAt, s.until, s.checkAt, s.stopped, s.gaveUp, s.whole = 0, 0, 0, 0, false, false
	s.overdue, s.usual, s.waitAt, s.large = false, 0, 0, false
	if s.class != ClassLaunchBound {
		return
	}
	s.expect = s.size().predict()
	length := s.size().length(s.expect)
	s.usual = length
	if length < FedMin {
		if s.stopAt = Never; held { // lower queues are still stopped
			s.stop(now, now.Add(length))
		}
		if s.follows && s.counted { // a queued prompt looks like a token at first
			s.checkAt = now.Add(FedMin)
		}
		return
	}
	if !s.counted && length <= wholeMax {
		s.stop(now, now.Add(length))
		s.until = now.Add(wholeMax)
		s.checkAt, s.whole = s.until, true
		return
	}
	s.plan(now, length, length, held)
}

// size returns the sizes of segments like the current one.
func (s *Segments) size() *sizes {
	if s.follows && !s.large {
		return &s.next
	}
	return &s.first
}

// Progress reports how many launches there were so far, and whether a thread waits for them.
func (s *Segments) Progress(now Time, launches uint64, waits bool) {
	if launches > s.count && launches-s.base < 1<<31 {
		s.count = launches
	}
	if !s.open || s.waits {
		switch {
		case s.checkAt == 0 || now < s.checkAt:
		case s.open && s.count-s.waitCount >= launchesMin:
			s.again(now)
		case now < s.until:
			s.checkAt = min(s.until, now.Add(checkGap))
		default:
			s.giveWay()
		}
		return
	}
	if waits && s.paused != 0 { // nothing is left to wait for
		end := now
		if now.Sub(s.paused) >= SegmentGap {
			end = s.paused // the wait was seen late, or belongs to something else
		}
		s.End(end, s.began, max(1, end.Sub(s.began)), 0, NoLows)
		return
	}
	if waits {
		s.waitAt, s.waitCount = now, s.count
	}
	if s.class != ClassLaunchBound {
		s.waits = waits
		return
	}
	began := s.stopAt != 0 && s.stopAt <= now
	if waits {
		s.waits = true
		if began && s.stopped == 0 {
			s.stopped = s.stopAt
		}
		if !began || now >= s.until {
			s.stopAt = now // late, but better than to wait for a slice to end
		}
		s.until = now.Add(waitMax + min(now.Sub(s.began)/2, time.Second))
		s.checkAt = now.Add(checkGap)
		return
	}
	if now < s.checkAt || s.checkAt == 0 || s.paused != 0 {
		return
	}
	if began && now >= s.until && s.stopped == 0 { // earlier, this check may still postpone it
		s.stopped = s.stopAt
	}
	if s.waitsUnseen(now) {
		s.hidden = true
		if s.stop(now, now); now.Sub(s.checked) >= waitMax {
			s.giveWay()
		}
		return
	}
	s.expectMore()
	if s.usual < FedMin {
		s.look(now)
		return
	}
	if s.stopped != 0 && now >= s.until {
		s.gaveUp = true
	}
	s.checks++
	if n, took := s.count-s.checkedCount, now.Sub(max(s.checked, s.began)); n >= history && took > 0 {
		s.recent = float64(took) / float64(n)
	}
	s.checkedCount = s.count
	s.stopAt, s.until, s.checkAt = Never, 0, 0
	left, least, known := s.remaining(now)
	switch {
	case !known || s.checks >= maxChecks && s.gaveUp:
	case s.gaveUp && left < s.lead+patience: // it looked like that before
	default:
		s.plan(now, left, least, false)
	}
}

// Pause reports that the device has no work left, but no thread waits.
func (s *Segments) Pause(now Time) {
	if s.open {
		s.paused = now
	}
}

// Drop forgets the current segment: its beginning or its end is not known.
func (s *Segments) Drop() {
	s.open, s.waits, s.paused, s.stopAt, s.checkAt, s.overdue = false, false, 0, 0, 0, false
}

// Gathered reports whether the kernels of the current segment wait on the device for each other.
func (s *Segments) Gathered(yes bool) { s.gathered = yes }

// End reports that the program waited for the segment. In its last busy period, which began at a time, it
// submitted for the time fed and waited for the rest, tail.
func (s *Segments) End(now, from Time, fed, tail time.Duration, lows Lows) {
	if s.open && fed > 0 && from > s.began {
		fed += from.Sub(s.began)
	}
	if !s.open || fed <= 0 || tail < 0 || fed > segmentMax || tail > segmentMax {
		s.Drop()
		s.ended = now
		return
	}
	s.unseen = max(0, s.unseen-1)
	size := uint32(min(s.count-s.base, 1<<31))
	s.batch.End(uint64(size), fed, tail, s.gathered)
	foreseen := s.settle(size, fed, tail)
	wait := now.Add(-tail)
	// Lower queues are mostly still stopped when a segment follows, so one that waits early, such as a token,
	// says nothing about the lead or the class.
	covered := s.follows && tail > fed/3
	if s.class == ClassLaunchBound && lows == LowsGiveWay && foreseen && !covered {
		s.judge(wait, fed, tail)
	}
	s.learn(wait, fed)
	if !covered && (lows != LowsCompete || submits(fed, tail)) {
		s.classify(fed, tail)
	}
	s.Drop()
	s.ended = now
}
