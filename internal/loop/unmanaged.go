// SPDX-License-Identifier: Apache-2.0

package loop

import (
	"xsched/internal/model"
)

// unmanaged knows which GPUs unmanaged programs share, from the last scan and events since. Next to
// such a program a tenant with a tiny timeslice starves. A GPU therefore counts as shared until a scan
// has shown the opposite. A client that the device does not let us control counts like an unmanaged
// program.
type unmanaged struct {
	engine   *input
	registry *registry
	scan     func() // see Config.Scan

	scanned      bool // false: every GPU counts as shared
	on           map[model.DeviceID]bool
	uncontrolled map[model.DeviceID]int // clients out of control
}

// assume runs before a queue enters the engine. It asks for a scan where the knowledge is
// missing, or outdated because the new queue may belong to the program that the last scan found.
func (u *unmanaged) assume(now model.Time, c *Client, gpu model.DeviceID) {
	if u.scan == nil || c.counts.competing[gpu] > 0 {
		return
	}
	if !u.scanned {
		u.share(now, gpu, true)
	}
	if u.on[gpu] {
		u.scan()
	}
}

// share notes whether unmanaged programs use a GPU.
func (u *unmanaged) share(now model.Time, gpu model.DeviceID, shared bool) {
	if u.on[gpu] == shared {
		return
	}
	was := u.shared(gpu)
	if u.on == nil {
		u.on = map[model.DeviceID]bool{}
	}
	if shared {
		u.on[gpu] = true
	} else {
		delete(u.on, gpu)
	}
	u.report(now, gpu, was)
}

// shared reports whether a GPU counts as shared.
func (u *unmanaged) shared(gpu model.DeviceID) bool { return u.on[gpu] || u.uncontrolled[gpu] > 0 }

// report notifies the engine whether a GPU counts as shared, if that is new.
func (u *unmanaged) report(now model.Time, gpu model.DeviceID, was bool) {
	if is := u.shared(gpu); is != was {
		u.engine.SetUnmanaged(now, gpu, is)
		u.engine.dirty = true
	}
}

// lose notes whether a client on a GPU is out of control.
func (u *unmanaged) lose(now model.Time, c *Client, gpu model.DeviceID, lost bool) {
	if c.uncontrolled[gpu] == lost {
		return
	}
	if c.uncontrolled == nil {
		c.uncontrolled = map[model.DeviceID]bool{}
	}
	if u.uncontrolled == nil {
		u.uncontrolled = map[model.DeviceID]int{}
	}
	was := u.shared(gpu)
	if lost {
		c.uncontrolled[gpu] = true
		u.uncontrolled[gpu]++
	} else if delete(c.uncontrolled, gpu); u.uncontrolled[gpu] > 1 {
		u.uncontrolled[gpu]--
	} else {
		delete(u.uncontrolled, gpu)
	}
	u.report(now, gpu, was)
}

// forget runs when the last client left: nobody scans until the next one joins.
func (u *unmanaged) forget() {
	if len(u.registry.clients) == 0 {
		u.scanned = false
	}
}
