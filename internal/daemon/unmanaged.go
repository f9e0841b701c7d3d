// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"xsched/internal/driver"
	"xsched/internal/health"
	"xsched/internal/model"
)

// The pause between two scans grows with the number of processes on the host.
const (
	scanPeriod     = time.Second
	scanPeriodMost = 20 * time.Second // for scans of one second, about 5,000 processes
	scanShare      = 20               // scanning uses at most 1/scanShare of the time
)

// leftTime bounds how long a departure waits for the loop.
const leftTime = 100 * time.Millisecond

// untilNextScan is the pause after a scan of the given duration.
func untilNextScan(took time.Duration) time.Duration {
	return min(max(scanPeriod, scanShare*took), scanPeriodMost)
}

// unmanaged finds the unmanaged programs on the GPUs. Where one runs, a best-effort program makes no
// progress with a tiny timeslice, and a long timeslice keeps the unmanaged one out.
type unmanaged struct {
	log     *slog.Logger
	drivers *driver.Set
	access  *access
	wake    chan struct{} // requests a scan
	// found gets each program that is new on a GPU.
	found func(pid int, gpu model.DeviceID)

	mu sync.Mutex // orders scans and departures; held while the loop answers
	// on lists the programs by GPU, as the engine knows them.
	on map[model.DeviceID][]int
	// departed: sessions that ended since the last scan began. Their programs count at once.
	departed map[int][]model.DeviceID

	counts atomic.Pointer[map[model.DeviceID]int] // of on, for readers
}

// run reports to the engine which GPUs unmanaged programs use, until ctx ends.
func (u *unmanaged) run(ctx context.Context, part *health.Part) {
	paceScans(ctx, u.wake, func() time.Duration {
		part.Beat()
		return u.scan(ctx)
	})
}

// paceScans scans periodically and on request, within the same share of CPU time. scan returns its
// duration.
func paceScans(ctx context.Context, asked <-chan struct{}, scan func() time.Duration) {
	wait, pause := scanPeriod, time.Duration(0)
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
		select {
		case <-ctx.Done():
			return
		case <-asked:
		case <-time.After(wait - pause):
		}
		took := scan()
		wait, pause = untilNextScan(took), min(scanShare*took, scanPeriodMost)
	}
}

// scan scans once and returns the duration.
func (u *unmanaged) scan(ctx context.Context) (took time.Duration) {
	u.mu.Lock()
	judged := maps.Clone(u.departed)
	u.mu.Unlock()
	managed := u.access.server.PIDs()
	var users map[model.DeviceID][]int
	if len(managed) > 0 { // otherwise nothing is scheduled
		began := time.Now()
		users = u.drivers.Users(managed)
		took = time.Since(began)
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	now, shared := u.merge(users, judged)
	if u.access.loop.SetUnmanaged(ctx, shared) != nil {
		return took
	}
	for gpu := range u.on {
		if !shared[gpu] {
			u.log.Info("unmanaged programs left the GPU", "device", gpu.String())
		}
	}
	for gpu := range shared {
		if len(u.on[gpu]) == 0 {
			u.log.Info("unmanaged program on the GPU", "device", gpu.String(), "pid", now[gpu][0])
		}
	}
	for gpu, pids := range now {
		for _, pid := range pids {
			if !slices.Contains(u.on[gpu], pid) {
				u.found(pid, gpu)
			}
		}
	}
	u.on = now
	u.publish()
	return took
}

// merge combines a scan with the departures that it could not see. A program counts from its first
// scan on: programs that each live for one scan only would otherwise never count. One that is about
// to connect counts until its first queue requests a scan (package loop assumes it).
// Preconditions: u.mu is held.
func (u *unmanaged) merge(users map[model.DeviceID][]int, judged map[int][]model.DeviceID) (map[model.DeviceID][]int, map[model.DeviceID]bool) {
	now, shared := map[model.DeviceID][]int{}, map[model.DeviceID]bool{}
	for gpu, pids := range users {
		now[gpu], shared[gpu] = slices.Clone(pids), true
	}
	for pid := range judged {
		delete(u.departed, pid)
	}
	for pid, gpus := range u.departed {
		for _, gpu := range gpus {
			now[gpu], shared[gpu] = append(now[gpu], pid), true
		}
	}
	return now, shared
}

// left reports that the session of a process ended. If the process still uses a GPU, its neighbors
// lose their tiny timeslices at once, not after the next scan.
func (u *unmanaged) left(pid int) {
	gpus := u.drivers.UsedBy(pid)
	if len(gpus) == 0 {
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.departed == nil {
		u.departed = map[int][]model.DeviceID{}
	}
	u.departed[pid] = gpus
	// The next scan repeats it if the loop does not answer; the session must go on ending.
	ctx, cancel := context.WithTimeout(context.Background(), leftTime)
	defer cancel()
	if u.access.loop.AddUnmanaged(ctx, gpus) == nil {
		u.log.Info("program became unmanaged", "pid", pid)
		for _, gpu := range gpus {
			u.add(gpu, pid)
		}
		u.publish()
	}
	u.request()
}

func (u *unmanaged) add(gpu model.DeviceID, pid int) {
	if u.on == nil {
		u.on = map[model.DeviceID][]int{}
	}
	if !slices.Contains(u.on[gpu], pid) {
		u.on[gpu] = append(u.on[gpu], pid)
	}
}

// publish updates counts. Preconditions: u.mu is held.
func (u *unmanaged) publish() {
	counts := make(map[model.DeviceID]int, len(u.on))
	for gpu, pids := range u.on {
		counts[gpu] = len(pids)
	}
	u.counts.Store(&counts)
}

// count counts the unmanaged programs per GPU.
func (u *unmanaged) count() map[model.DeviceID]int {
	if counts := u.counts.Load(); counts != nil {
		return *counts
	}
	return nil
}

// request requests a scan without waiting.
func (u *unmanaged) request() {
	select {
	case u.wake <- struct{}{}:
	default:
	}
}
