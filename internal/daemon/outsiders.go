// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"maps"
	"slices"
	"time"

	"xsched/internal/model"
)

// An unmanaged program counts after two scans, because a new one may be about to connect. Scans of
// a host with many processes are further apart.
const (
	outsiderPeriod     = time.Second
	outsiderPeriodMost = 20 * time.Second // for scans of one second, about 5,000 processes
	outsiderShare      = 20               // scanning uses at most 1/outsiderShare of the time
)

// untilNextLook is the pause after a scan of the given duration.
func untilNextLook(looked time.Duration) time.Duration {
	return min(max(outsiderPeriod, outsiderShare*looked), outsiderPeriodMost)
}

// watchOutsiders tells the engine which GPUs unmanaged programs use. Beside those, a best-effort
// tenant makes no progress with a tiny timeslice, and a long one keeps them out.
func (d *Daemon) watchOutsiders(ctx context.Context) {
	told, seen := map[model.DeviceID]bool{}, map[int]bool{}
	paceLooks(ctx, d.look, func() time.Duration { return d.lookForOutsiders(ctx, told, seen) })
}

// paceLooks scans periodically and on request, within the same share of CPU time. look returns its
// duration.
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

// lookForOutsiders scans once and returns the duration. told is the engine's state, seen the
// processes of the last scan.
func (d *Daemon) lookForOutsiders(ctx context.Context, told map[model.DeviceID]bool, seen map[int]bool) (looked time.Duration) {
	users := map[model.DeviceID][]int{}
	if managed := d.server.PIDs(); len(managed) > 0 { // otherwise nothing is scheduled
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
		if len(users[gpu]) == 0 && d.loop.SetUnmanaged(ctx, gpu, false) == nil {
			delete(told, gpu)
			d.log.Info("unmanaged programs left the GPU", "device", gpu.String())
		}
	}
	for gpu, pids := range users {
		if len(pids) > 0 && !told[gpu] && d.loop.SetUnmanaged(ctx, gpu, true) == nil {
			told[gpu] = true
			d.log.Info("unmanaged program on the GPU", "device", gpu.String(), "pid", pids[0])
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.outsiders = users
	return looked
}

// others counts the unmanaged programs per GPU.
func (d *Daemon) others() map[model.DeviceID]int {
	d.mu.Lock()
	defer d.mu.Unlock()
	out := make(map[model.DeviceID]int, len(d.outsiders))
	for gpu, pids := range d.outsiders {
		out[gpu] = len(pids)
	}
	return out
}

// lookAgain requests a scan after a program came under control.
func (d *Daemon) lookAgain() {
	select {
	case d.look <- struct{}{}:
	default:
	}
}
