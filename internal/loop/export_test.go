// SPDX-License-Identifier: Apache-2.0

package loop

import (
	"context"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"xsched/internal/clock"
	"xsched/internal/driver"
	"xsched/internal/engine"
	"xsched/internal/identity"
	"xsched/internal/meter"
	"xsched/internal/model"
	"xsched/internal/wire"
)

// MaxGPUs exports maxGPUs.
const MaxGPUs = maxGPUs

// Call runs f on the loop, after all requests so far. The methods below are for such functions.
func (l *Loop) Call(ctx context.Context, f func()) error {
	for _, in := range *l.mail.users.Load() {
		if err := l.call(context.WithValue(ctx, clientKey{}, in.user), func() {}); err != nil {
			return err
		}
	}
	return l.call(ctx, f)
}

// OnlyClient returns the only client.
func (l *Loop) OnlyClient() *Client {
	for _, c := range l.registry.clients {
		return c
	}
	return nil
}

// EngineOnLoop returns the engine.
func (l *Loop) EngineOnLoop() *engine.Engine { return l.engine.Engine }

// ScanAt reads the page of a client.
func (l *Loop) ScanAt(now model.Time, c *Client) { l.pages.scan(now, c) }

// SampleAt reads the polled queues.
func (l *Loop) SampleAt(now model.Time) { l.poll.sample(now) }

// DecideAt decides, whether anything changed or not.
func (l *Loop) DecideAt(now model.Time) {
	l.engine.dirty = true
	l.decide(now)
}

// EndPollingAt ends polling where it no longer applies.
func (l *Loop) EndPollingAt(now model.Time) { l.poll.endStale(now) }

// QueuePolled reports whether a queue is polled.
func (c *Client) QueuePolled(index uint32) bool { return c.queues[index].polled }

// WorkerUpdates returns how often a worker's state was computed.
func (l *Loop) WorkerUpdates() uint64 { return l.dispatch.workerUpdates }

// Throttled returns how often doorbells were ignored, and how many are now.
func (l *Loop) Throttled() (times uint64, now int) {
	return l.pace.throttles.Load(), len(l.pace.throttled)
}

// Accounts returns how many users have clients.
func (l *Loop) Accounts() int { return l.pace.accounts }

// GuessedIdle reports whether a queue of a client is estimated to be idle.
func (l *Loop) GuessedIdle(id model.SessionID, index uint32) bool {
	return l.registry.clients[id].queues[index].estimate.Idle()
}

// UnhookedQueues returns the number of unhooked queues.
func (l *Loop) UnhookedQueues() int64 { return l.pages.unhookedQueues.Load() }

// CheckCopies compares the copies that the next snapshot would reuse with the state that they
// stand for.
func (l *Loop) CheckCopies() error {
	now, cfg := clock.Now(), l.engine.Config()
	for _, c := range l.registry.clients {
		if c.copy.last == nil || c.copy.outdated || c.copy.last.busy {
			continue
		}
		s := &snapshot{at: now, config: cfg, clients: []*clientCopy{c.copy.last}, counters: []wire.Counters{{}}, signs: []wire.Signs{{}}, memory: [][]MemoryView{nil}}
		got, want := s.view(0), c.view(now, &cfg)
		got.Age, want.Age, want.Totals = 0, 0, c.use.Totals(now, l.activity.usage)
		if !reflect.DeepEqual(got, want) {
			return fmt.Errorf("the copy of client %d is\n%+v\nits state is\n%+v", c.ID, got, want)
		}
	}
	return nil
}

// Turn turns scheduling off for a client on a device, or on again if why is empty.
func (l *Loop) Turn(c *Client, gpu model.DeviceID, why string) { l.turned(c, gpu, why, why != "") }

// SharedWithUnmanaged reports whether a GPU counts as shared with unmanaged programs.
func (l *Loop) SharedWithUnmanaged(gpu model.DeviceID) bool { return l.unmanaged.on[gpu] }

// Unformatted takes a snapshot and returns what formats it later.
func (l *Loop) Unformatted(ctx context.Context) (func() []ClientView, error) {
	s, err := l.snapshot(ctx)
	return func() []ClientView { return s.format() }, err
}

// Copied returns how many clients have a copy, and how many of those a snapshot would reuse.
func (l *Loop) Copied() (all, unchanged int) {
	for _, c := range l.registry.clients {
		if c.copy.last != nil {
			all++
			if !c.copy.outdated && !c.copy.last.busy {
				unchanged++
			}
		}
	}
	return all, unchanged
}

// PIDs returns the processes in order.
func (l *Loop) PIDs() []int { return slices.Sorted(maps.Keys(l.registry.byPID)) }

// UserDepth exports userDepth.
const UserDepth = userDepth

// PostAs queues f on behalf of the context's user.
func (l *Loop) PostAs(ctx context.Context, f func()) error { return l.post(ctx, f) }

// Waiting returns how many requests of a user wait.
func (l *Loop) Waiting(user identity.User) int {
	for _, in := range *l.mail.users.Load() {
		if in.user == user {
			return len(in.requests)
		}
	}
	return 0
}

// References returns how many clients and requests use the account of a user.
func (l *Loop) References(user identity.User) int64 {
	l.mail.mu.Lock()
	defer l.mail.mu.Unlock()
	if b := l.mail.byUser[user]; b != nil {
		return b.refs.Load()
	}
	return 0
}

// MaxUserQueues exports maxUserQueues.
const MaxUserQueues = maxUserQueues

// MaxMerged exports maxMerged.
const MaxMerged = maxMerged

// ClientOf returns a client.
func (l *Loop) ClientOf(id model.SessionID) *Client { return l.registry.clients[id] }

// SetCapsAt applies the result of a probe.
func (l *Loop) SetCapsAt(c *Client, caps map[model.DeviceID]driver.Capability) {
	l.pages.setCaps(c, caps)
}

// PublishInterrupted begins a snapshot, as if the process had been stopped for d meanwhile.
func (l *Loop) PublishInterrupted(d time.Duration) {
	l.publisher.wanted.Store(&request{done: make(chan struct{})})
	l.publisher.asked()
	l.publisher.next = 0
	l.publish(clock.Now().Add(-d))
}

// Requests returns the requests of a client, nil if there are none.
func (c *Client) Requests() *LatencyView {
	return c.requests.Figures().Latency(c.hints.Hint.SLO.Latency)
}

// Open returns for how long the request in progress lasts.
func (c *Client) Open(now model.Time) time.Duration { return c.requests.Open(now) }

// WatchAt is the part of a heartbeat that concerns requests.
func (l *Loop) WatchAt(now model.Time, c *Client) {
	l.requests.readMarks(now, c)
	l.requests.watch(now, c)
}

// LatencyWindow exports meter.LatencyWindow.
const LatencyWindow = meter.LatencyWindow

// BreakEpoll makes the loop's next wait fail.
func (l *Loop) BreakEpoll(ctx context.Context) error {
	return l.post(ctx, func() {
		fd, err := unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err == nil {
			_ = unix.Dup3(fd, l.epoll, unix.O_CLOEXEC)
			_ = unix.Close(fd)
		}
	})
}
