// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"xsched/internal/health"
	"xsched/internal/model"
)

// Scans of a host with many processes are further apart.
const (
	outsiderPeriod     = time.Second
	outsiderPeriodMost = 20 * time.Second // for scans of one second, about 5,000 processes
	outsiderShare      = 20               // scanning uses at most 1/outsiderShare of the time
)

// leftTime bounds how long a departure waits for the loop.
const leftTime = 100 * time.Millisecond

// untilNextLook is the pause after a scan of the given duration.
func untilNextLook(looked time.Duration) time.Duration {
	return min(max(outsiderPeriod, outsiderShare*looked), outsiderPeriodMost)
}

// outsiders are the unmanaged programs. Beside those, a best-effort tenant makes no progress with a
// tiny timeslice, and a long one keeps them out.
type outsiders struct {
	mu sync.Mutex // orders scans and departures; held while the loop answers
	// on lists the programs by GPU, as the engine knows them.
	on map[model.DeviceID][]int
	// departed: sessions that ended since the last scan began. Their programs count at once.
	departed map[int][]model.DeviceID

	counts atomic.Pointer[map[model.DeviceID]int] // of on, for readers
}

// watchOutsiders tells the engine which GPUs unmanaged programs use.
func (d *Daemon) watchOutsiders(ctx context.Context, part *health.Part) {
	paceLooks(ctx, d.look, func() time.Duration {
		part.Beat()
		return d.lookForOutsiders(ctx)
	})
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

// lookForOutsiders scans once and returns the duration.
func (d *Daemon) lookForOutsiders(ctx context.Context) (looked time.Duration) {
	o := &d.outsiders
	o.mu.Lock()
	judged := maps.Clone(o.departed)
	o.mu.Unlock()
	managed := d.server.PIDs()
	var users map[model.DeviceID][]int
	if len(managed) > 0 { // otherwise nothing is scheduled
		began := time.Now()
		users = d.drivers.Users(managed)
		looked = time.Since(began)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	now, shared := o.merge(users, judged)
	if d.loop.SetOutsiders(ctx, shared) != nil {
		return looked
	}
	for gpu := range o.on {
		if !shared[gpu] {
			d.log.Info("unmanaged programs left the GPU", "device", gpu.String())
		}
	}
	for gpu := range shared {
		if len(o.on[gpu]) == 0 {
			d.log.Info("unmanaged program on the GPU", "device", gpu.String(), "pid", now[gpu][0])
		}
	}
	g := d.terms.grants.Load()
	for gpu, pids := range now {
		for _, pid := range pids {
			if slices.Contains(o.on[gpu], pid) {
				continue
			}
			if pod := g.podWithout(pid, gpu); pod != "" {
				d.log.Warn("unmanaged program of a pod that was not granted the GPU", "pid", pid, "pod", pod, "device", gpu.String())
			}
		}
	}
	o.on = now
	o.publish()
	return looked
}

// merge combines a scan with the departures that it could not see. A program counts from its first
// scan on: programs that each live for one scan only would otherwise never count. One that is about
// to connect counts until its first queue requests a scan (loop.assumeOutsiders).
// Preconditions: o.mu is held.
func (o *outsiders) merge(users map[model.DeviceID][]int, judged map[int][]model.DeviceID) (map[model.DeviceID][]int, map[model.DeviceID]bool) {
	now, shared := map[model.DeviceID][]int{}, map[model.DeviceID]bool{}
	for gpu, pids := range users {
		now[gpu], shared[gpu] = slices.Clone(pids), true
	}
	for pid := range judged {
		delete(o.departed, pid)
	}
	for pid, gpus := range o.departed {
		for _, gpu := range gpus {
			now[gpu], shared[gpu] = append(now[gpu], pid), true
		}
	}
	return now, shared
}

// left reports that the session of a process ended. If the process still uses a GPU, its neighbors
// lose their tiny timeslices at once, not after the next scan.
func (d *Daemon) left(pid int) {
	gpus := d.drivers.UsedBy(pid)
	if len(gpus) == 0 {
		return
	}
	o := &d.outsiders
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.departed == nil {
		o.departed = map[int][]model.DeviceID{}
	}
	o.departed[pid] = gpus
	// The next scan repeats it if the loop does not answer; the session must go on ending.
	ctx, cancel := context.WithTimeout(context.Background(), leftTime)
	defer cancel()
	if d.loop.AddOutsider(ctx, gpus) == nil {
		d.log.Info("program became unmanaged", "pid", pid)
		for _, gpu := range gpus {
			o.add(gpu, pid)
		}
		o.publish()
	}
	d.lookAgain()
}

func (o *outsiders) add(gpu model.DeviceID, pid int) {
	if o.on == nil {
		o.on = map[model.DeviceID][]int{}
	}
	if !slices.Contains(o.on[gpu], pid) {
		o.on[gpu] = append(o.on[gpu], pid)
	}
}

// publish updates counts. Preconditions: o.mu is held.
func (o *outsiders) publish() {
	counts := make(map[model.DeviceID]int, len(o.on))
	for gpu, pids := range o.on {
		counts[gpu] = len(pids)
	}
	o.counts.Store(&counts)
}

// others counts the unmanaged programs per GPU.
func (d *Daemon) others() map[model.DeviceID]int {
	if counts := d.outsiders.counts.Load(); counts != nil {
		return *counts
	}
	return nil
}

// lookAgain requests a scan without waiting.
func (d *Daemon) lookAgain() {
	select {
	case d.look <- struct{}{}:
	default:
	}
}
