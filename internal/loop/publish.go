// SPDX-License-Identifier: Apache-2.0

package loop

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"xsched/internal/clock"
	"xsched/internal/engine"
	"xsched/internal/meter"
	"xsched/internal/model"
	"xsched/internal/wire"
)

// This file publishes the loop's state to readers. Any user may read as often as it likes, so the
// loop only copies what changed since the last snapshot, a little in each pass. The readers format
// the copies on their own time, once per snapshot.
//
// A reader gets a snapshot that was begun after it asked. It therefore sees every change that was
// answered before.
const (
	copyTime   = 20 * time.Microsecond // of a pass
	copyQueues = 32                    // between two readings of the clock
	copyShare  = 20                    // copying uses at most 1/copyShare of the loop's time
	copyPause  = 2 * time.Millisecond  // least time between two snapshots
	// copyMost is what a pass can cost. A longer one was interrupted, for example by SIGSTOP; charged
	// in full, no reader would get an answer for 20 times as long.
	copyMost = time.Millisecond
)

// snapshot is the state of the loop at about one time. It does not change once it is published.
type snapshot struct {
	at       model.Time
	config   engine.Config
	clients  []*clientCopy
	counters []wire.Counters // of each client
	signs    []wire.Signs    // of each client
	memory   [][]MemoryView
	gpus     map[model.DeviceID]GPUView

	formatted sync.Once
	views     []ClientView
}

// request is a snapshot that readers wait for.
type request struct {
	done chan struct{}
	got  *snapshot
}

// publisher builds snapshots. Only the loop uses it, except for wanted.
type publisher struct {
	engine   *input
	registry *registry
	thread   *thread
	poll     *poller
	usage    *meter.Usage
	memory   *memory

	config    atomic.Pointer[engine.Config]
	snapshots atomic.Uint64
	wanted    atomic.Pointer[request] // the next one
	seen      bool                    // it was wanted at the start of this pass
	next      model.Time
	building  *builder
}

// builder is a snapshot in progress.
type builder struct {
	request *request
	out     *snapshot
	clients []*Client // not yet copied
	client  *clientCopy
	queues  []*queue // of client, not yet copied
	spent   time.Duration
}

// snapshot returns a snapshot that was begun after the call.
func (p *publisher) snapshot(ctx context.Context) (*snapshot, error) {
	r := p.wanted.Load()
	if r == nil {
		r = &request{done: make(chan struct{})}
		if p.wanted.CompareAndSwap(nil, r) {
			p.thread.ring()
		} else if r = p.wanted.Load(); r == nil {
			return p.snapshot(ctx) // the loop took the other one meanwhile, maybe before this call
		}
	}
	select {
	case <-r.done:
		return r.got, nil
	case <-p.thread.done:
		return nil, ErrStopped
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// asked reports whether a reader waits for a snapshot that is not yet begun.
func (p *publisher) asked() bool {
	p.seen = p.building == nil && p.wanted.Load() != nil
	return p.seen
}

// publish copies a part of the state if a reader waits for it.
func (p *publisher) publish(now model.Time) {
	if p.building == nil {
		if !p.seen || now < p.next {
			return
		}
		p.poll.sample(now)
		p.building = &builder{
			request: p.wanted.Swap(nil),
			out:     &snapshot{at: now, clients: make([]*clientCopy, 0, len(p.registry.clients)), counters: make([]wire.Counters, 0, len(p.registry.clients))},
			clients: slices.AppendSeq(make([]*Client, 0, len(p.registry.clients)), maps.Values(p.registry.clients)),
		}
	}
	b := p.building
	done := false
	for !done && clock.Now().Sub(now) < copyTime {
		done = p.copySome(b)
	}
	b.spent += min(clock.Now().Sub(now), copyMost)
	if !done {
		return
	}
	b.out.config = p.engine.Config()
	b.out.gpus = p.usage.GPUs(b.out.at)
	p.building, p.next = nil, clock.Now().Add(max(copyPause, (copyShare-1)*b.spent))
	p.snapshots.Add(1)
	b.request.got = b.out
	close(b.request.done)
}

// copySome copies a few queues, or one client without queues. It returns true at the end.
func (p *publisher) copySome(b *builder) bool {
	if b.client == nil {
		if len(b.clients) == 0 {
			return true
		}
		c := b.clients[0]
		if b.clients = b.clients[1:]; p.registry.clients[c.ID] != c {
			return false // it has left
		}
		b.out.counters = append(b.out.counters, c.page.Counters())
		b.out.signs = append(b.out.signs, c.page.Signs(b.out.at))
		b.out.memory = append(b.out.memory, p.memory.views(c))
		if c.copy.last != nil && !c.copy.outdated && !c.copy.last.busy {
			b.out.clients = append(b.out.clients, c.copy.last)
			return false
		}
		c.copy.outdated = false
		b.client = &clientCopy{Client: *c, copies: make([]queue, 0, c.places()), protections: p.engine.Protections(b.out.at, c.PID)}
		b.client.busy = len(b.client.protections) > 0 // its recent cost fades
		b.queues = slices.AppendSeq(b.queues[:0], maps.Values(c.queues))
	}
	c := p.registry.clients[b.client.ID]
	n := min(copyQueues, len(b.queues))
	for _, q := range b.queues[:n] {
		if c == nil || c.queues[q.id.Index] != q || q.merge.primary != nil {
			continue // it has left, or is in the entry of its primary queue
		}
		b.client.busy = b.client.busy || q.busy
		if q.busy && q.gate != nil {
			q.seen.submitted = c.page.Queue(int(q.id.Index)).Submitted
		}
		q.stops.Share()
		b.client.copies = append(b.client.copies, *q)
		last := &b.client.copies[len(b.client.copies)-1]
		last.merge.members = nil
		last.yields = q.busy && q.want.Suspend == 0 && q.yields
	}
	if b.queues = b.queues[n:]; len(b.queues) > 0 {
		return false
	}
	done := b.client
	b.client = nil
	done.queues, done.counts, done.hooks, done.copy = nil, deviceCounts{}, clientHooks{}, clientSnapshot{}
	done.merge, done.workers = clientMerge{refused: done.merge.refused}, clientWorkers{off: done.workers.off}
	done.totals, done.use = done.use.Totals(clock.Now(), p.usage), meter.ProgramUse{Shares: done.use.Shares}
	if c != nil {
		c.copy.last = done
	}
	b.out.clients = append(b.out.clients, done)
	return false
}

// format returns the clients, oldest first. Callers must not change the result.
func (s *snapshot) format() []ClientView {
	s.formatted.Do(func() {
		s.views = make([]ClientView, 0, len(s.clients))
		for i := range s.clients {
			s.views = append(s.views, s.view(i))
		}
		slices.SortFunc(s.views, func(a, b ClientView) int { return cmp.Compare(a.ID, b.ID) })
	})
	return s.views
}

// view formats one client. It runs on the reader's goroutine, so it uses only the
// copy.
func (s *snapshot) view(i int) ClientView {
	c := s.clients[i].Client
	copies := s.clients[i].copies
	c.queues, c.counts.queues, c.counts.separate = make(map[uint32]*queue, len(copies)), map[model.DeviceID]int{}, map[model.DeviceID]int{}
	for k := range copies {
		q := &copies[k]
		c.queues[q.id.Index] = q
		c.counts.queues[q.device]++
		if q.hints.Separate() {
			c.counts.separate[q.device]++
		}
	}
	v := c.view(s.at, &s.config)
	v.Counters, v.Signs, v.Memory, v.Protections, v.Totals = s.counters[i], s.signs[i], s.memory[i], s.clients[i].protections, s.clients[i].totals
	return v
}

// Config returns the engine's configuration. It works while the loop is blocked.
func (p *publisher) Config() engine.Config { return *p.config.Load() }

// publishConfig publishes the engine's configuration after a change.
func (p *publisher) publishConfig() {
	cfg := p.engine.Config()
	p.config.Store(&cfg)
}

// Clients returns all clients, oldest first. Callers must not change the result.
func (p *publisher) Clients(ctx context.Context) ([]ClientView, error) {
	s, err := p.snapshot(ctx)
	if err != nil {
		return nil, err
	}
	return s.format(), nil
}

// Client returns the oldest client of a process, or ErrUnknownPID.
func (p *publisher) Client(ctx context.Context, pid int) (ClientView, error) {
	s, err := p.snapshot(ctx)
	if err != nil {
		return ClientView{}, err
	}
	oldest := -1
	for i, c := range s.clients {
		if c.PID == pid && (oldest < 0 || c.ID < s.clients[oldest].ID) {
			oldest = i
		}
	}
	if oldest < 0 {
		return ClientView{}, ErrUnknownPID
	}
	return s.view(oldest), nil
}

// GPUs returns how much each GPU is used.
func (p *publisher) GPUs(ctx context.Context) (map[model.DeviceID]GPUView, error) {
	s, err := p.snapshot(ctx)
	if err != nil {
		return nil, err
	}
	return maps.Clone(s.gpus), nil
}
