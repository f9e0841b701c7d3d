// SPDX-License-Identifier: Apache-2.0

// Package ledger keeps what each user's programs used of the GPUs, by hour and by day, in memory and in two
// files for the next daemon. It must know neither how programs are measured, nor who may read what.
package ledger

import (
	"cmp"
	"log/slog"
	"slices"
	"sync"
	"time"

	"xsched/internal/model"
)

const (
	hourLength = int64(time.Hour / time.Second)
	dayLength  = 24 * hourLength
	// HoursKept is for how many hours rows are kept by the hour. Older ones are merged into days.
	HoursKept = 7 * 24
	DaysKept  = 90
	// requestTime bounds the number of requests that a program may claim to have had.
	requestTime = 100 * time.Nanosecond
)

// Use is what a program used since it joined.
type Use struct {
	GPUs                  []GPUUse
	Requests, Met, Missed uint64 // of a latency target; they may begin anew
}

// GPUUse is a program's use of one GPU.
type GPUUse struct {
	GPU         string
	Ran, Waited time.Duration
}

// Program is a program and its use so far. Key is without a GPU.
type Program struct {
	Session uint64
	Key     Key
	Use     Use
}

// Ledger is safe for concurrent use.
type Ledger struct {
	path string // of the file of the past; empty: none
	log  *slog.Logger

	mu       sync.Mutex
	sampled  model.Time
	programs map[uint64]*program // alive
	gpus     map[string]bool     // with a name in rows of this hour
	hosts    int                 // GPUs of the host
	inUse    map[string]bool     // GPUs that count in the capacity until the next sample
	hour     *bucket             // the current one
	past     []*bucket           // by start; immutable
	closed   uint64              // number of hours that past has, ever
	saved    uint64              // of those in the file of the past
	used     bool                // a GPU, since the last write

	failed bool // the last write; only Save uses it
	write  func(path string, closed uint64, buckets []*bucket, sync bool) error
}

// program is what was seen of a program.
type program struct {
	at   model.Time
	gpus map[string]GPUUse
	last Use // requests only
}

// New returns an empty ledger.
func New(now model.Time, wall time.Time, log *slog.Logger) *Ledger {
	return &Ledger{
		log: log, write: write, sampled: now, programs: map[uint64]*program{}, gpus: map[string]bool{}, inUse: map[string]bool{}, hour: newBucket(wall.Unix(), hourLength),
	}
}

// Joined begins to account a program.
func (l *Ledger) Joined(now model.Time, session uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.programs[session] = &program{at: now, gpus: map[string]GPUUse{}}
}

// Left accounts the last use of a program.
func (l *Ledger) Left(now model.Time, p Program) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.account(now, &p)
	delete(l.programs, p.Session)
}

// Sample accounts the use of programs since the last sample, in the hour that the wall clock shows. Amounts
// are differences of counters and of the engine's clock, so a step of the wall clock changes none. gpus are
// those that drivers list. Programs name others at will: these count while they run something.
// A snapshot may have programs that have left meanwhile.
func (l *Ledger) Sample(now model.Time, wall time.Time, gpus []string, programs []Program) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if at := wall.Unix(); at < l.hour.start || at >= l.hour.start+l.hour.length {
		l.close(newBucket(at, hourLength))
	}
	l.hosts = len(gpus)
	for _, gpu := range gpus {
		l.gpus[gpu], l.inUse[gpu] = true, true
	}
	for i := range programs {
		l.account(now, &programs[i])
	}
	elapsed := max(0, int64(now.Sub(l.sampled)))
	l.sampled = max(now, l.sampled)
	l.hour.watched = sum(l.hour.watched, elapsed)
	l.hour.capacity = sum(l.hour.capacity, elapsed*int64(len(l.inUse)))
	clear(l.inUse)
}

// name returns the name of a GPU in rows.
func (l *Ledger) name(gpu string) string {
	if !l.gpus[gpu] {
		if len(l.gpus) >= maxGPUs {
			return OtherGPU
		}
		l.gpus[gpu] = true
	}
	return gpu
}

// account adds what a program used since it was last seen. Requests belong to the GPU that it used most.
func (l *Ledger) account(now model.Time, p *Program) {
	seen := l.programs[p.Session]
	if seen == nil || len(p.Use.GPUs) == 0 {
		return
	}
	open := max(0, now.Sub(seen.at))
	most, ran := 0, time.Duration(-1)
	rows := make([]Amounts, len(p.Use.GPUs))
	for i, u := range p.Use.GPUs {
		was := seen.gpus[u.GPU]
		rows[i] = Amounts{Ran: grown(was.Ran, u.Ran), Waited: grown(was.Waited, u.Waited), Open: int64(open)}
		if d := time.Duration(rows[i].Ran); d > ran {
			most, ran = i, d
		}
	}
	limit := uint64(open/requestTime) + 1
	more := func(was, is uint64) int64 { return int64(min(uint64(grown(was, is)), limit)) }
	rows[most].Requests = more(seen.last.Requests, p.Use.Requests)
	rows[most].Met = more(seen.last.Met, p.Use.Met)
	rows[most].Judged = rows[most].Met + more(seen.last.Missed, p.Use.Missed)
	for i, u := range p.Use.GPUs {
		key := p.Key
		key.GPU = l.name(u.GPU)
		if l.hosts == 0 || rows[i].Ran > 0 {
			l.inUse[u.GPU] = true
		}
		l.hour.add(key.clean(), rows[i])
		l.used = l.used || rows[i].Ran+rows[i].Waited+rows[i].Requests > 0
	}
	seen.at, seen.last = max(now, seen.at), p.Use
	clear(seen.gpus)
	for _, u := range p.Use.GPUs {
		seen.gpus[u.GPU] = u
	}
	seen.last.GPUs = nil
}

// grown is the increase of a counter. One that decreased has begun anew.
func grown[T time.Duration | uint64](was, is T) int64 {
	if is < was {
		was = 0
	}
	return int64(min(uint64(is-was), maxAmount))
}

// close ends the current hour.
func (l *Ledger) close(next *bucket) {
	if !l.hour.empty() {
		l.past = compact(insert(slices.Clone(l.past), l.hour), next.start)
		l.closed++
	}
	l.hour = next
	clear(l.gpus)
}

// insert adds a bucket. One of the same time is replaced by the sum: the wall clock was set back.
func insert(past []*bucket, b *bucket) []*bucket {
	at, known := slices.BinarySearchFunc(past, b, compareBuckets)
	if !known {
		return slices.Insert(past, at, b)
	}
	both := past[at].clone()
	both.merge(b)
	past[at] = both
	return past
}

func compareBuckets(a, b *bucket) int {
	return cmp.Or(cmp.Compare(a.start, b.start), cmp.Compare(a.length, b.length))
}

// compact merges the hours beyond HoursKept into days, and drops the oldest days beyond DaysKept. Hours in
// the future, of a clock that was wrong, become days, too.
func compact(past []*bucket, now int64) []*bucket {
	out := make([]*bucket, 0, len(past))
	days := 0
	for _, b := range past {
		if b.length == hourLength && (b.start < now-HoursKept*hourLength || b.start > now) {
			day := newBucket(b.start, dayLength)
			day.merge(b)
			b = day
		}
		out = insert(out, b)
	}
	for _, b := range out {
		if b.length == dayLength {
			days++
		}
	}
	return slices.DeleteFunc(out, func(b *bucket) bool {
		if b.length != dayLength || days <= DaysKept {
			return false
		}
		days--
		return true
	})
}

// Total is the sum of a report.
type Total struct {
	From, To time.Time
	// Watched is for how long a daemon ran in this time, and Capacity the time of all GPUs in it.
	Watched, Capacity time.Duration
	Rows              map[Key]Amounts
}

// Sum returns the rows of a time until now. group selects rows, and returns the key whose row has the sum.
// The first hour or day counts as a whole.
func (l *Ledger) Sum(now time.Time, length time.Duration, group func(Key) (Key, bool)) Total {
	l.mu.Lock()
	all := append(slices.Clone(l.past), l.hour.clone())
	l.mu.Unlock()
	out := Total{From: now, To: now, Rows: map[Key]Amounts{}}
	first := now.Add(-length).Unix()
	for _, b := range all {
		if b.start+b.length <= first || b.start > now.Unix() || b.empty() {
			continue
		}
		if from := time.Unix(b.start, 0); from.Before(out.From) {
			out.From = from
		}
		out.Watched += time.Duration(b.watched)
		out.Capacity += time.Duration(b.capacity)
		for k, a := range b.rows {
			if k, ok := group(k); ok {
				row := out.Rows[k]
				row.Add(a)
				out.Rows[k] = row
			}
		}
	}
	return out
}
