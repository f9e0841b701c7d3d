// SPDX-License-Identifier: Apache-2.0

package guardian

import (
	"context"
	"log/slog"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"xsched/internal/driver"
	"xsched/internal/identity"
	"xsched/internal/wire"
)

// handTime is how long a restarted guardian leaves a recorded process to the daemon that wrote the
// record. A daemon that is silent for longer has lost its leases.
const handTime = wire.HeartbeatLimitNS

// Recovery restores the processes that a daemon and its guardian left when both died.
type Recovery struct {
	journal journal
	drivers []driver.Driver
	log     *slog.Logger
	look    looker

	mu      sync.Mutex
	pending map[string]*pending // by record name
}

type pending struct {
	pid    int
	cancel context.CancelFunc
	done   chan struct{}
}

// Recover starts a recovery of every record in a runtime directory. Each process has its own
// goroutine, because a device may not answer.
func Recover(dir string, drivers []driver.Driver, log *slog.Logger) *Recovery {
	return recoverAll(dir, drivers, log, kernel())
}

func recoverAll(dir string, drivers []driver.Driver, log *slog.Logger, look looker) *Recovery {
	r := &Recovery{journal: journalOf(dir), drivers: drivers, log: log, look: look, pending: map[string]*pending{}}
	for name, rec := range r.journal.read() {
		ctx, cancel := context.WithCancel(context.Background())
		one := &pending{pid: rec.Target.PID, cancel: cancel, done: make(chan struct{})}
		r.pending[name] = one
		go func() {
			defer close(one.done)
			defer cancel()
			if r.restore(ctx, name, &rec) && !r.journal.replaced(name, rec) {
				r.journal.remove(name)
			}
			r.mu.Lock()
			defer r.mu.Unlock()
			delete(r.pending, name)
		}()
	}
	return r
}

// restore restores a recorded process; false: somebody else takes care of it.
func (r *Recovery) restore(ctx context.Context, name string, rec *record) bool {
	daemon, guardian, known := r.keepers(ctx, rec)
	if known && daemon && !guardian {
		select {
		case <-ctx.Done():
			return false
		case <-time.After(handTime):
		}
		var err error
		if *rec, err = readRecord(filepath.Join(string(r.journal), name)); err != nil {
			return false
		}
		daemon, guardian, known = r.keepers(ctx, rec)
	}
	if !known || daemon && guardian {
		return false
	}
	d, _ := driverOf(r.drivers, rec.Driver).(driver.Restorer)
	pidfd := -1
	if !r.certain(ctx, func() (err error) { pidfd, err = rec.open(r.look); return err }) {
		return false
	}
	if d == nil || pidfd < 0 {
		return true
	}
	defer func() { _ = unix.Close(pidfd) }()
	began := time.Now()
	for wait := lookPeriod; !identity.Ended(pidfd); wait = min(2*wait, retryMax) {
		err := r.attempt(ctx, d, *rec, pidfd)
		if err == nil {
			r.log.Warn("restored a process that a dead daemon left", "pid", rec.Target.PID, "took", time.Since(began))
			return true
		}
		r.log.Debug("restore failed", "pid", rec.Target.PID, "err", err)
		select {
		case <-ctx.Done():
			return false
		case <-time.After(wait):
		}
	}
	return true
}

// keepers reports whether the daemon and the guardian of a record live; known is false if ctx ended first.
func (r *Recovery) keepers(ctx context.Context, rec *record) (daemon, guardian, known bool) {
	known = r.certain(ctx, func() (err error) {
		if daemon, err = rec.Daemon.lives(r.look); err == nil {
			guardian, err = rec.Guardian.lives(r.look)
		}
		return err
	})
	return daemon, guardian, known
}

// certain repeats a look that failed, until it succeeds or ctx ends. A process whose state is unknown may
// be suspended, so it is not given up.
func (r *Recovery) certain(ctx context.Context, look func() error) bool {
	for wait := lookPeriod; ; wait = min(2*wait, retryMax) {
		err := look()
		if err == nil {
			return true
		}
		r.log.Warn("the state of a recorded process is unknown; trying again", "err", err)
		select {
		case <-ctx.Done():
			return false
		case <-time.After(wait):
		}
	}
}

func (r *Recovery) attempt(ctx context.Context, d driver.Restorer, rec record, pidfd int) error {
	// An attempt that has begun must finish, because it may be between a stop and an enable.
	if err := ctx.Err(); err != nil {
		return err
	}
	once, cancel := context.WithTimeout(context.WithoutCancel(ctx), tryTime)
	defer cancel()
	restoration, err := d.Reopen(once, rec.Place, rec.Target.PID, pidfd, rec.State)
	if err != nil || restoration == nil {
		return err
	}
	defer restoration.Close()
	return restoration.Restore(once)
}

// Wait waits for the recovery of a process, or of all with pid 0.
func (r *Recovery) Wait(ctx context.Context, pid int) error {
	r.mu.Lock()
	var wait []*pending
	for _, p := range r.pending {
		if pid == 0 || p.pid == pid {
			wait = append(wait, p)
		}
	}
	r.mu.Unlock()
	for _, p := range wait {
		select {
		case <-p.done:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// handed cancels the recovery of a process that its daemon handed over, and waits for an attempt in
// progress. An attempt that hangs in the device may restore the process later, which does no harm.
func (r *Recovery) handed(name string) {
	r.mu.Lock()
	p := r.pending[name]
	r.mu.Unlock()
	if p != nil {
		p.cancel()
		select {
		case <-p.done:
		case <-time.After(tryTime):
			r.log.Warn("an attempt to restore a process hangs", "pid", p.pid)
		}
	}
}
