// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"xsched/internal/health"
)

// folderPeriod is the interval at which the daemon checks that its runtime folder is still its own. Two
// daemons schedule the same GPUs for at most that long.
const folderPeriod = 500 * time.Millisecond

// failure is why a daemon must end.
type failure struct {
	once  sync.Once
	ended chan struct{}
	err   error // set before ended is closed
}

func (f *failure) report(err error) {
	f.once.Do(func() {
		f.err = err
		close(f.ended)
	})
}

// Failed is closed when the daemon can't go on: its engine loop has ended, or its runtime folder is gone.
// The caller then closes the daemon.
func (d *Daemon) Failed() <-chan struct{} { return d.failure.ended }

// Failure returns why the daemon can't go on. Call it after Failed is closed.
func (d *Daemon) Failure() error { return d.failure.err }

// watchFolder reports a failure when the engine loop ends, or when the lock is gone: another daemon can
// start then, and nobody reaches this one. Its programs continue natively and join the next daemon.
func (d *Daemon) watchFolder(ctx context.Context, held func() bool, part *health.Part) {
	tick := time.NewTicker(folderPeriod)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-d.loop.Done():
			d.failure.report(errors.New("the engine loop has ended; see the log"))
			return
		case <-tick.C:
		}
		part.Beat()
		if !held() {
			err := fmt.Errorf("the runtime folder %s was deleted or replaced, so another daemon may run; do not delete it while a daemon runs", d.opts.Dir)
			d.log.Error("the daemon ends", "err", err)
			d.failure.report(err)
			return
		}
	}
}
