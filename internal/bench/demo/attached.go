// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"context"
	"errors"
	"fmt"
	"time"

	"xsched/internal/bench"
	"xsched/internal/control"
)

// attacher is a Daemon that can take over programs without a shim.
type attacher interface {
	Attach(ctx context.Context, pid int) (control.ProcessReply, error)
}

// attachLows puts low tenants without a shim under the daemon.
func (r *run) attachLows(ctx context.Context) error {
	if !r.attached {
		return nil
	}
	d, ok := r.daemon.(attacher)
	if !ok {
		return errors.New("this daemon can't attach")
	}
	for _, t := range r.tenants[1:] {
		limit := time.Now().Add(5 * time.Second)
		for {
			_, err := d.Attach(ctx, t.PID())
			if err == nil {
				break
			}
			if time.Now().After(limit) {
				return fmt.Errorf("attach to %s: %w", t.Name, err)
			}
			if err := bench.Sleep(ctx, 50*time.Millisecond); err != nil {
				return err
			}
		}
	}
	return nil
}

// known says whether the daemon has a tenant under control: through its shim, or from outside.
func (r *run) known(p control.Process, t *bench.Tenant) bool {
	if r.attached && t != r.tenants[0] {
		return p.Attached
	}
	return p.Counters.HookedCalls > 0
}
