// SPDX-License-Identifier: Apache-2.0

package loop

import (
	"context"

	"xsched/internal/model"
)

// This file knows which GPUs unmanaged programs share. Beside such a program a tenant with a tiny
// timeslice starves. A GPU therefore counts as shared until a scan has shown the opposite. A client
// that the device does not let us control counts like an unmanaged program.

// outsiders is the result of the last scan, and of events since.
type outsiders struct {
	scanned bool // false: every GPU counts as shared
	on      map[model.DeviceID]bool
	loose   map[model.DeviceID]int // clients out of control
}

// assumeOutsiders runs before a queue enters the engine. It asks for a scan where the knowledge is
// missing, or outdated because the new queue may belong to the program that the last scan found.
func (l *Loop) assumeOutsiders(now model.Time, c *Client, gpu model.DeviceID) {
	if l.cfg.Scan == nil || c.competing[gpu] > 0 {
		return
	}
	if !l.outsiders.scanned {
		l.share(now, gpu, true)
	}
	if l.outsiders.on[gpu] {
		l.cfg.Scan()
	}
}

// share notes whether unmanaged programs use a GPU.
func (l *Loop) share(now model.Time, gpu model.DeviceID, shared bool) {
	if l.outsiders.on[gpu] == shared {
		return
	}
	was := l.outsiders.shared(gpu)
	if l.outsiders.on == nil {
		l.outsiders.on = map[model.DeviceID]bool{}
	}
	if shared {
		l.outsiders.on[gpu] = true
	} else {
		delete(l.outsiders.on, gpu)
	}
	l.tellShared(now, gpu, was)
}

// shared reports whether a GPU counts as shared.
func (o *outsiders) shared(gpu model.DeviceID) bool { return o.on[gpu] || o.loose[gpu] > 0 }

// tellShared tells the engine whether a GPU counts as shared, if that is new.
func (l *Loop) tellShared(now model.Time, gpu model.DeviceID, was bool) {
	if is := l.outsiders.shared(gpu); is != was {
		l.engine.SetUnmanaged(now, gpu, is)
		l.dirty = true
	}
}

// loosen notes whether a client on a GPU is out of control.
func (l *Loop) loosen(now model.Time, c *Client, gpu model.DeviceID, loose bool) {
	if c.loose[gpu] == loose {
		return
	}
	if c.loose == nil {
		c.loose = map[model.DeviceID]bool{}
	}
	if l.outsiders.loose == nil {
		l.outsiders.loose = map[model.DeviceID]int{}
	}
	was := l.outsiders.shared(gpu)
	if loose {
		c.loose[gpu] = true
		l.outsiders.loose[gpu]++
	} else if delete(c.loose, gpu); l.outsiders.loose[gpu] > 1 {
		l.outsiders.loose[gpu]--
	} else {
		delete(l.outsiders.loose, gpu)
	}
	l.tellShared(now, gpu, was)
}

// forgetOutsiders runs when the last client left: nobody scans until the next one joins.
func (l *Loop) forgetOutsiders() {
	if len(l.clients) == 0 {
		l.outsiders.scanned = false
	}
}

// SetOutsiders reports the GPUs that programs without a session use, as of a complete scan.
func (l *Loop) SetOutsiders(ctx context.Context, gpus map[model.DeviceID]bool) error {
	return l.call(ctx, func() {
		now := l.now()
		for gpu := range l.outsiders.on {
			if !gpus[gpu] {
				l.share(now, gpu, false)
			}
		}
		for gpu, shared := range gpus {
			l.share(now, gpu, shared)
		}
		l.outsiders.scanned = len(l.clients) > 0
	})
}

// AddOutsider reports that a program on these GPUs just became unmanaged.
func (l *Loop) AddOutsider(ctx context.Context, gpus []model.DeviceID) error {
	return l.call(ctx, func() {
		for _, gpu := range gpus {
			l.share(l.now(), gpu, true)
		}
	})
}
