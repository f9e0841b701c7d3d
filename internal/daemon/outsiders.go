// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"maps"
	"slices"
	"time"

	"xsched/internal/model"
)

// A program that the daemon does not manage is known after two looks: one that has just started may
// be about to join. Looks at a machine with many processes are further apart.
const (
	outsiderPeriod     = time.Second
	outsiderPeriodMost = 20 * time.Second // for looks of a second: some 5,000 processes
	outsiderShare      = 20               // of the time at most one part in so many is spent looking
)

// untilNextLook is how long to wait after a look that took so long.
func untilNextLook(looked time.Duration) time.Duration {
	return min(max(outsiderPeriod, outsiderShare*looked), outsiderPeriodMost)
}

// watchOutsiders tells the engine which GPUs are used by programs that have no session: beside
// those the tiny slice of a low gets nothing done, and a long one of a high keeps them out.
func (d *Daemon) watchOutsiders(ctx context.Context) {
	if d.drivers.Empty() {
		return
	}
	told, seen := map[model.DeviceID]bool{}, map[int]bool{}
	paceLooks(ctx, d.look, func() time.Duration { return d.lookForOutsiders(ctx, told, seen) })
}

// paceLooks looks now and then, and when asked. look says how long it took; who asks all the time
// gets no more than the share either.
func paceLooks(ctx context.Context, asked <-chan struct{}, look func() time.Duration) {
	wait, rest := outsiderPeriod, time.Duration(0)
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(rest):
		}
		select {
		case <-ctx.Done():
			return
		case <-asked:
		case <-time.After(wait - rest):
		}
		looked := look()
		wait, rest = untilNextLook(looked), min(outsiderShare*looked, outsiderPeriodMost)
	}
}

// lookForOutsiders looks once, and says how long it had to look. told is what the engine knows, seen
// who was there the last time.
func (d *Daemon) lookForOutsiders(ctx context.Context, told map[model.DeviceID]bool, seen map[int]bool) (looked time.Duration) {
	users := map[model.DeviceID][]int{}
	if managed := d.hub.PIDs(); len(managed) > 0 { // else nobody is scheduled
		began := time.Now()
		users = d.drivers.Users(managed)
		looked = time.Since(began)
	}
	known := maps.Clone(seen)
	clear(seen)
	for gpu, pids := range users {
		for _, pid := range pids {
			seen[pid] = true
		}
		users[gpu] = slices.DeleteFunc(pids, func(pid int) bool { return !known[pid] })
	}
	for gpu := range told {
		if len(users[gpu]) == 0 && d.hub.SetUnmanaged(ctx, gpu, false) == nil {
			delete(told, gpu)
			d.log.Info("the last program without a session has left", "device", gpu.String())
		}
	}
	for gpu, pids := range users {
		if len(pids) > 0 && !told[gpu] && d.hub.SetUnmanaged(ctx, gpu, true) == nil {
			told[gpu] = true
			d.log.Info("a program without a session uses a GPU", "device", gpu.String(), "pid", pids[0])
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.outsiders = users
	return looked
}

// others is how many programs without a session use a GPU.
func (d *Daemon) others() map[model.DeviceID]int {
	d.mu.Lock()
	defer d.mu.Unlock()
	out := make(map[model.DeviceID]int, len(d.outsiders))
	for gpu, pids := range d.outsiders {
		out[gpu] = len(pids)
	}
	return out
}

// lookAgain has the next look at once: a program has come under control.
func (d *Daemon) lookAgain() {
	select {
	case d.look <- struct{}{}:
	default:
	}
}
