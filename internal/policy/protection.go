// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"math"
	"time"

	"xsched/internal/model"
)

// Protection accounts what running a process before the lower queues of a device
// ("lows") gains it, and what that costs them. The engine reports what happens.
//
// The gain is the difference of two percentiles: of its requests as they were, and
// as they would be if the driver shared the device. A request is a busy period and
// those before it for which no thread waited. The second is a model (nativeLength) until the process has run without protection.
//
// The cost is the time in which lows had work and none progressed, less the device
// time of its own requests and two switches for each. The daemon can't see how long
// the device works for a launch-bound request, except after the program has begun
// to wait. The cost is therefore an upper bound.
//
// Where the gain is not worth the cost, the process shares the device natively for
// a while, and is protected again on trial. The time between trials doubles.
type Protection struct {
	PID int
	// Native: it shares the device natively, because protection gains it nothing.
	Native bool
	// Changes counts how often Native changed.
	Changes uint64

	since model.Time // when the current phase began, protected or native
	phase float64    // of the next request, for the model
	known bool       // its program tells for how long it submits

	// The request in progress.
	busy    int // queues with work
	began   model.Time
	period  model.Time    // when its last busy period began
	paused  model.Time    // when that ended and nobody waited; 0: it did not
	lows    int           // most processes with kernels beside it
	blocked time.Duration // in which no low progressed
	// spare is what is left of its own time, also for lows that stay suspended for a
	// moment after it.
	spare time.Duration
	// void: it ran under other rules than Native says.
	void bool

	actual   lengths // of protected requests
	modelled lengths // the same requests, natively
	measured lengths // of requests without protection

	requests uint64
	cost     time.Duration // total
	recent   float64       // of it, fading; nanoseconds
	fadedAt  model.Time
	first    model.Time // when the account began

	strikes  int
	judgedAt model.Time
	retry    model.Time    // when native ends
	wait     time.Duration // the next one
	paid     float64       // cost when protection ended, as a share of time
}

const (
	// costMemory is the time constant of the recent cost.
	costMemory = 30 * time.Second
	// judgeAfter requests of one phase suffice for a percentile; judgePeriod
	// limits how often it is computed.
	judgeAfter  = 50
	judgePeriod = time.Second
	// Protection is worth its cost if it shortens the requests by leastGain, and by
	// one percent per costPerGain percent of the device that the lows lose.
	leastGain   = 0.02
	costPerGain = 4
	// leastCost is the share of time below which protection is kept whatever it gains.
	leastCost = 0.01
	// maxStrikes judgements in a row end protection.
	maxStrikes = 2
	// changedRetry is when protection is tried again after other queues came, and
	// the shortest time without it.
	changedRetry = 5 * time.Second
)

// judged are the percentiles that decide; the larger gain counts. Only requests
// beside lows count, so delays by them show in most; a few that the host delays must
// not decide. Where a program has long launch-bound requests and short ones that
// wait, such as a prompt and its tokens, only the lower one shows the latter.
var judged = [...]float64{50, 90}

// NewProtection returns an account without history.
func NewProtection(pid int, now model.Time) *Protection {
	return &Protection{PID: pid, since: now, fadedAt: now, first: now}
}

// sharesNatively reports that protection gains none of the highest queues anything.
func (v *View) sharesNatively() bool {
	_, native := v.NativeRank()
	return native
}

// NativeRank returns the rank whose queues share the device natively, if any does:
// only the highest can.
func (v *View) NativeRank() (model.Priority, bool) {
	high := v.next(0, len(v.Queues), admitted)
	if high < 0 || v.next(high, v.classEnd(high), func(q *Queue) bool { return q.Admitted && !q.Native }) >= 0 {
		return 0, false
	}
	return v.Queues[high].Rank, true
}

// NativeUntil is when the process is protected again at the latest; Never if it is.
// Requests that show nothing, or one that does not end, must not delay that.
func (p *Protection) NativeUntil() model.Time {
	switch {
	case !p.Native:
		return model.Never
	case p.busy > 0 && p.began >= 0:
		return min(p.retry, max(p.period, p.since).Add(changedRetry))
	}
	return p.retry
}

// Expire protects the process again when it is time to, and reports whether it did.
func (p *Protection) Expire(now model.Time) bool {
	return now >= p.NativeUntil() && p.enter(now, false)
}

// Void reports that the request in progress runs under other rules than Native says.
func (p *Protection) Void() { p.void = true }

// Begin reports that a queue of the process got work.
func (p *Protection) Begin(now model.Time) {
	if p.busy++; p.busy > 1 {
		return
	}
	if p.paused == 0 || now.Sub(p.paused) >= model.SegmentGap {
		p.began, p.lows, p.void, p.spare = now, 0, false, 2*switchCost
	}
	p.period, p.blocked, p.paused = now, 0, 0
}

// Beside reports that so many lower processes have kernels during the request.
func (p *Protection) Beside(lows int) {
	if p.busy > 0 {
		p.lows = max(p.lows, lows)
	}
}

// Block reports that for a time lows had work and none progressed.
func (p *Protection) Block(now model.Time, d time.Duration) {
	if p.busy > 0 {
		p.blocked += d
		return
	}
	own := min(d, p.spare)
	p.spare -= own
	p.charge(now, d-own)
}

// End reports that a queue of the process has no work any more, and for how long
// its program submitted in this busy period before it waited; 0: unknown, negative:
// nobody waited. slice is the driver's own. It reports whether Native changed.
func (p *Protection) End(now model.Time, submitted, slice time.Duration, mayDrop bool) bool {
	if p.busy == 0 {
		return false
	}
	if p.busy--; p.busy > 0 {
		return false
	}
	p.spare -= p.blocked
	if p.began >= 0 && submitted >= 0 {
		p.spare += deviceTime(now.Sub(p.period), submitted)
	}
	p.charge(now, max(0, -p.spare))
	p.spare = max(0, p.spare)
	p.known = p.known || submitted > 0
	if p.Native && (now >= p.retry || !mayDrop) {
		return p.enter(now, false)
	}
	if submitted < 0 {
		p.paused = now
		return false
	}
	if p.void || p.began < p.since || p.lows == 0 || p.known && submitted == 0 {
		return false // of other rules or another phase, beside nobody, or seen in part
	}
	length := now.Sub(p.began)
	if submitted > 0 {
		submitted += p.period.Sub(p.began)
	}
	p.requests++
	if p.Native {
		p.measured.add(length)
	} else {
		p.actual.add(length)
		// The golden ratio spreads the phases evenly, whatever their number.
		p.phase = math.Mod(p.phase+math.Phi, 1)
		p.modelled.add(nativeLength(length, submitted, p.lows, p.phase, slice))
	}
	return p.judge(now, mayDrop)
}

// Leave reports that a queue of the process went with its work.
func (p *Protection) Leave() {
	p.busy = max(0, p.busy-1)
	p.began, p.paused = -1, 0 // of no phase: not a whole request
}

// LowsChanged reports that other queues compete: what was measured beside the
// earlier ones says little about these.
func (p *Protection) LowsChanged(now model.Time) {
	p.measured.reset()
	if p.Native {
		p.retry = min(p.retry, now.Add(changedRetry))
	}
}

// charge adds to the cost.
func (p *Protection) charge(now model.Time, d time.Duration) {
	if d <= 0 {
		return
	}
	p.fade(now)
	p.cost += d
	p.recent += float64(d)
}

func (p *Protection) fade(now model.Time) {
	if d := now.Sub(p.fadedAt); d > 0 {
		p.recent *= math.Exp(-float64(d) / float64(costMemory))
		p.fadedAt = now
	}
}

// costShare is the recent cost as a share of time.
func (p *Protection) costShare(now model.Time) float64 {
	age := now.Sub(p.first)
	if age <= 0 {
		return 0
	}
	recent := p.recent * math.Exp(-float64(max(0, now.Sub(p.fadedAt)))/float64(costMemory))
	return min(1, recent/float64(costMemory)/(1-math.Exp(-float64(age)/float64(costMemory))))
}

// natively is the distribution of the lengths without protection: as measured, or
// as modelled.
func (p *Protection) natively() *lengths {
	if p.measured.samples >= enough {
		return &p.measured
	}
	return &p.modelled
}

// judge decides whether protection is worth its cost.
func (p *Protection) judge(now model.Time, mayDrop bool) bool {
	if now < p.judgedAt.Add(judgePeriod) {
		return false
	}
	samples := p.actual.samples
	if p.Native {
		samples = p.measured.samples
	}
	if samples < judgeAfter || !mayDrop {
		return false
	}
	p.judgedAt = now
	if !p.Native {
		p.paid = p.costShare(now)
	}
	gain := math.Inf(-1)
	for _, percentile := range judged {
		native := p.natively().value(percentile)
		gain = max(gain, 1-float64(p.actual.value(percentile))/float64(max(1, native)))
	}
	least := max(leastGain, p.paid/costPerGain)
	if p.Native {
		// Twice the gain that would have kept it: an estimate near the limit must not
		// make protection come and go.
		return gain >= 2*least && now >= p.since.Add(changedRetry) && p.enter(now, false)
	}
	switch {
	case gain >= least:
		p.wait, p.strikes = 0, 0
		return false
	case p.paid < leastCost:
		return false // costs nothing that lows would notice
	}
	if p.strikes++; p.strikes < maxStrikes {
		return false
	}
	return p.enter(now, true)
}

// enter begins a phase.
func (p *Protection) enter(now model.Time, native bool) bool {
	p.Native, p.since, p.judgedAt, p.strikes = native, now, now, 0
	p.Changes++
	if native {
		p.wait = min(max(2*p.wait, firstRetry), lastRetry)
		p.retry = now.Add(p.wait)
		p.measured.reset()
	} else {
		p.actual.reset()
		p.modelled.reset()
		p.recent, p.first, p.fadedAt = 0, now, now // of the new trial alone
	}
	return true
}

// lengths estimates percentiles of lengths. The difference of two of them may be
// smaller than a bucket, so each bucket also has the mean of its samples.
type lengths struct {
	quantile
	sum [perOctave * octaves]float32 // by weight, in microseconds
}

func (l *lengths) add(d time.Duration) {
	was := l.gain
	l.quantile.add(d, 0, 99)
	if l.gain < was { // rescaled
		for i := range l.sum {
			l.sum[i] /= 1e6
		}
	}
	l.sum[bucket(d)] += float32(l.gain * float64(d) / float64(time.Microsecond))
}

func (l *lengths) reset() { *l = lengths{} }

// value estimates percentile p: the mean of its bucket.
func (l *lengths) value(p float64) time.Duration {
	i := l.bucketOf(p)
	if i < 0 {
		return 0
	}
	return time.Duration(float64(l.sum[i]/l.weight[i]) * float64(time.Microsecond))
}

// Source is where the lengths without protection come from.
type Source string

// The sources.
const (
	Modelled Source = "modelled"
	Measured Source = "measured"
)

// ProtectionStatus is what protection gains a process and costs the lows of a
// device, for display.
type ProtectionStatus struct {
	PID    int
	Device model.DeviceID
	// Native: the process shares the device natively at the moment.
	Native bool
	// Learning: too few requests for a percentile yet.
	Learning bool
	Changes  uint64 // of Native
	Requests uint64 // beside lows, so far
	// P50 and P99 of its requests under protection, and without it.
	P50, P99             time.Duration
	NativeP50, NativeP99 time.Duration
	Source               Source
	Cost                 time.Duration // to the lows, at most
	CostShare            float64       // of the recent time, at most
	// Segments is how the program submits its requests.
	Segments model.SegmentState
	// Sharing is how lower queues share the device with it at present.
	Sharing model.Sharing
}

// Gain is by how much protection shortens the P99; 0: unknown yet.
func (s *ProtectionStatus) Gain() time.Duration {
	if s.P99 == 0 || s.NativeP99 == 0 {
		return 0
	}
	return s.NativeP99 - s.P99
}

// Status returns the account for display.
func (p *Protection) Status(now model.Time, device model.DeviceID) ProtectionStatus {
	s := ProtectionStatus{
		PID: p.PID, Device: device, Native: p.Native, Changes: p.Changes, Requests: p.requests,
		P50: p.actual.value(50), P99: p.actual.value(99), Source: Modelled, Cost: p.cost, CostShare: p.costShare(now),
	}
	s.Learning = p.actual.samples < enough
	natively := p.natively()
	s.NativeP50, s.NativeP99 = natively.value(50), natively.value(99)
	if natively == &p.measured {
		s.Source = Measured
	}
	return s
}
