// SPDX-License-Identifier: Apache-2.0

package nvidia

import (
	"context"
	"errors"
	"time"

	"xsched/internal/driver"
	"xsched/internal/model"
)

var _ driver.SelfTester = (*Driver)(nil)

// SelfTest tests GPUs in sequence, regardless of existing evidence.
func (d *Driver) SelfTest(ctx context.Context, o driver.SelfTestOptions) ([]driver.SelfTest, error) {
	d.Refresh()
	if r := d.release.Load(); r.grade == Unsupported {
		return nil, errors.New(r.reason)
	}
	gpus := o.GPUs
	if len(gpus) == 0 {
		gpus = d.testable()
	}
	if len(gpus) == 0 {
		return nil, errors.New("the driver lists no GPU")
	}
	var out []driver.SelfTest
	var failed error
	for _, gpu := range gpus {
		if ctx.Err() != nil {
			return out, errors.Join(failed, ctx.Err())
		}
		t, err := d.testAndKeep(ctx, gpu, o)
		out, failed = append(out, t), errors.Join(failed, err)
	}
	return out, failed
}

// testAndKeep tests one GPU; one test runs at a time. The key is built after the test, because an
// unused GPU has no UUID yet.
func (d *Driver) testAndKeep(ctx context.Context, gpu model.DeviceID, o driver.SelfTestOptions) (driver.SelfTest, error) {
	d.testing.Lock()
	defer d.testing.Unlock()
	version := d.Version()
	t := d.selfTestOne(ctx, gpu, o)
	t.SelfTestKey = d.testKey(gpu)
	t.Driver = version
	return t, d.saveTest(gpu, t)
}

// testable lists the GPUs. The first virtual GPU stands for all: they are alike.
func (d *Driver) testable() []model.DeviceID {
	if d.Virtual {
		return []model.DeviceID{model.MakeDeviceID(0, 1, 0, 0)}
	}
	var out []model.DeviceID
	for _, g := range d.system.GPUs() {
		if id, err := model.ParseDeviceID(g.PCI); err == nil {
			out = append(out, id)
		}
	}
	return out
}

// Schedule of automatic tests.
const (
	testPoll = 5 * time.Second
	// busyWait bounds the wait for an idle GPU where levels 2 and 3 depend on the test. A measured
	// driver waits without limit.
	busyWait = time.Minute
	// Inconclusive and failed tests repeat with exponential back-off.
	againFirst = time.Minute
	againMost  = time.Hour
)

// Scans for busy GPUs use at most 1/scanShare of the time, but are at most scanPause apart.
const (
	scanShare = 20
	scanPause = 20 * time.Second
)

// KeepTested tests each GPU once per driver release until ctx ends, and calls changed on a new
// release or new evidence, even if a joining client noticed it first. Without a program there are
// no tests.
func (d *Driver) KeepTested(ctx context.Context, o driver.SelfTestOptions, changed func()) {
	k := newTestKeeper(d, o)
	var notified uint64
	notify := func() {
		if g := d.generation.Load(); g != notified {
			notified = g
			changed()
		}
	}
	if o.Beat == nil {
		o.Beat = func() {}
	}
	for {
		o.Beat()
		d.Refresh()
		notify()
		if o.Program != nil {
			k.look(ctx)
			notify()
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(testPoll):
		}
	}
}

// testKeeper schedules the tests.
type testKeeper struct {
	driver  *Driver
	options driver.SelfTestOptions
	gpus    func() []model.DeviceID
	scan    func() map[model.DeviceID][]int // processes per GPU
	version string
	plans   map[model.DeviceID]*testPlan

	users    map[model.DeviceID][]int // the scan of this look; nil: none
	nextScan time.Time
}

func newTestKeeper(d *Driver, o driver.SelfTestOptions) *testKeeper {
	return &testKeeper{
		driver: d, options: o, plans: map[model.DeviceID]*testPlan{},
		gpus: d.testable, scan: d.allUsers,
	}
}

// busy reports whether processes use a GPU. One scan serves a whole look. Until the next scan is
// due, every GPU counts as busy.
func (k *testKeeper) busy(gpu model.DeviceID) bool {
	if start := time.Now(); k.users == nil && !start.Before(k.nextScan) {
		k.users = k.scan()
		end := time.Now()
		k.nextScan = end.Add(min(scanShare*end.Sub(start), scanPause))
	}
	return k.users == nil || len(k.users[gpu]) > 0
}

// testPlan is the schedule of one GPU.
type testPlan struct {
	since time.Time     // when the test became due
	next  time.Time     // earliest start
	pause time.Duration // back-off
}

// look tests every due GPU and reports whether there was one.
func (k *testKeeper) look(ctx context.Context) (any bool) {
	r := k.driver.release.Load()
	if r.grade < SameABI || r.grade == Measured && k.options.OnlyIfNeeded {
		return false
	}
	if k.version != r.version {
		k.version = r.version
		clear(k.plans)
	}
	k.users = nil
	for _, gpu := range k.gpus() {
		if ctx.Err() != nil {
			return any
		}
		if !k.due(r, gpu) {
			continue
		}
		if k.options.Beat != nil {
			k.options.Beat()
		}
		t, err := k.driver.testAndKeep(ctx, gpu, k.options)
		k.driver.logTest(t, err)
		k.tried(gpu)
		k.users, k.nextScan = nil, time.Time{} // outdated by the duration of the test
		any = true
	}
	return any
}

// tried schedules a repetition in case the last test was not conclusive.
func (k *testKeeper) tried(gpu model.DeviceID) {
	p := k.plans[gpu]
	p.pause = min(max(againFirst, 2*p.pause), againMost)
	p.next = time.Now().Add(p.pause)
}

// due reports whether a GPU must be tested now.
func (k *testKeeper) due(r *release, gpu model.DeviceID) bool {
	if t, ok := r.levels.tested(gpu); ok && t.Outcome == driver.OutcomePassed {
		return false
	}
	p := k.plans[gpu]
	if p == nil {
		p = &testPlan{since: time.Now()}
		k.plans[gpu] = p
	}
	if time.Now().Before(p.next) {
		return false
	}
	if !k.busy(gpu) {
		return true
	}
	return r.grade != Measured && time.Since(p.since) > busyWait
}

func (d *Driver) logTest(t driver.SelfTest, err error) {
	if d.log == nil {
		return
	}
	switch {
	case t.Outcome == driver.OutcomePassed:
		d.log.Info("self-test passed", "gpu", t.GPU, "driver", t.Driver)
	default:
		d.log.Warn("self-test did not pass", "outcome", t.Outcome, "gpu", t.GPU, "driver", t.Driver, "reason", t.Reason)
	}
	if err != nil {
		d.log.Warn("self-test result is not kept", "err", err)
	}
}
