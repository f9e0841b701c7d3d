// SPDX-License-Identifier: Apache-2.0

package loop

import (
	"context"

	"xsched/internal/engine"
	"xsched/internal/model"
)

// MaxGPUs exports maxGPUs.
const MaxGPUs = maxGPUs

// Call runs f on the loop. The methods below are for such functions.
func (l *Loop) Call(ctx context.Context, f func()) error { return l.call(ctx, f) }

// OnlyClient returns the only client.
func (l *Loop) OnlyClient() *Client {
	for _, c := range l.clients {
		return c
	}
	return nil
}

// EngineOnLoop returns the engine.
func (l *Loop) EngineOnLoop() *engine.Engine { return l.engine }

// ScanAt reads the page of a client.
func (l *Loop) ScanAt(now model.Time, c *Client) { l.scan(now, c) }

// SampleAt reads the quiet queues.
func (l *Loop) SampleAt(now model.Time) { l.sample(now) }

// EndQuietAt ends quiet where it no longer applies.
func (l *Loop) EndQuietAt(now model.Time) { l.endQuiet(now) }

// QueueQuiet reports whether a queue is quiet.
func (c *Client) QueueQuiet(index uint32) bool { return c.queues[index].quiet }

// WorkerUpdates returns how often a worker's state was computed.
func (l *Loop) WorkerUpdates() uint64 { return l.workerUpdates }

// Throttled returns how often doorbells were ignored, and how many are now.
func (l *Loop) Throttled() (times uint64, now int) { return l.throttles, len(l.throttled) }

// Accounts returns how many users have clients.
func (l *Loop) Accounts() int { return len(l.accounts) }

// GuessedIdle reports whether a queue of a client is estimated to be idle.
func (l *Loop) GuessedIdle(id model.SessionID, index uint32) bool {
	return l.clients[id].queues[index].guess.idle
}

// BareQueues returns the number of bare queues.
func (l *Loop) BareQueues() int64 { return l.bare.Load() }
