// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"fmt"
	"sync"
	"time"

	"xsched/internal/device/amd"
	"xsched/internal/hub"
	"xsched/internal/model"
	"xsched/internal/wire"
)

// guardPeriod is how soon the engine's silence is seen.
const guardPeriod = 20 * time.Millisecond

// leaseGuard does for a process that is debugged what the library does for its own, and the
// guardian for an attached one on the other platform: an engine that is silent, or a lease that
// has run out, ends the suspension. It is apart from the engine, and needs nothing of it.
type leaseGuard struct {
	page    wire.ClientPage
	resume  func() error
	now     func() model.Time
	stop    chan struct{}
	once    sync.Once
	stopped sync.WaitGroup
}

// guardAMD starts one; what it returns ends it.
func (d *daemon) guardAMD(a *amd.Attached, memfd int) (func(restored bool), error) {
	page, err := wire.MapPage(memfd)
	if err != nil {
		return nil, fmt.Errorf("guard an attached process: %w", err)
	}
	g := &leaseGuard{page: wire.ClientPage{Page: page}, resume: a.ResumeAll, now: hub.NewClock().Now, stop: make(chan struct{})}
	g.stopped.Go(g.run)
	return func(bool) {
		g.once.Do(func() { close(g.stop) })
		go func() { // the resume under way may wait for the device
			g.stopped.Wait()
			page.Release()
		}()
	}, nil
}

func (g *leaseGuard) run() {
	t := time.NewTicker(guardPeriod)
	defer t.Stop()
	done := uint64(0) // the newest lease that was ended here
	for {
		select {
		case <-g.stop:
			return
		case <-t.C:
		}
		epoch, deadline := g.page.Lease()
		now := g.now()
		silent := now.Sub(g.page.LastHeartbeat()) > wire.HeartbeatLimitNS
		if deadline == 0 || epoch == done || !silent && now <= deadline {
			continue
		}
		if g.resume() == nil {
			done = epoch
			g.page.SetRecovered(epoch)
		}
	}
}
