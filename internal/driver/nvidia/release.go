// SPDX-License-Identifier: Apache-2.0

package nvidia

import (
	"fmt"
	"time"

	"xsched/internal/driver"
	"xsched/internal/model"
)

// release is the loaded driver with its evidence. An upgraded driver is a new release and inherits
// no evidence.
type release struct {
	version string
	grade   Grade
	reason  string // why the grade is below SameABI
	levels  *levelCache
}

func newRelease(version string) *release {
	g, err := grade(version)
	r := &release{version: version, grade: g, levels: &levelCache{}}
	if err != nil {
		r.reason = err.Error()
	}
	return r
}

// Version returns the driver version as of the last Refresh.
func (d *Driver) Version() string { return d.release.Load().version }

// readVersion reads the loaded version. The virtual GPU reports one only if a file next to its
// socket sets it, for tests.
func (d *Driver) readVersion() (string, error) {
	v, err := d.system.DriverVersion()
	if err != nil && d.Virtual {
		return virtualVersion, nil
	}
	return v, err
}

// Refresh rereads the driver's version and reports a change, because the daemon may outlive a
// driver upgrade.
func (d *Driver) Refresh() (changed bool) {
	v, err := d.readVersion()
	if err != nil {
		return false // unloaded; the same release may return
	}
	d.refresh.Lock()
	defer d.refresh.Unlock()
	if v == d.Version() {
		return d.loadTests()
	}
	r := newRelease(v)
	d.release.Store(r)
	d.generation.Add(1)
	// An unreadable cache only costs a probe.
	_ = d.loadLevels(r)
	d.tests.seen = time.Time{} // the file may have results of this release
	d.loadTests()
	return true
}

// allowed reports whether the evidence permits levels 2 and 3, and timeslices, and why not.
func (r *release) allowed(gpu model.DeviceID) (stop, slices bool, reason string) {
	test, tested := r.levels.tested(gpu)
	passed := tested && test.Stop && test.Outcome != driver.OutcomeInconclusive
	switch {
	case r.grade == Unsupported:
		return false, false, r.reason
	case tested && test.Outcome == driver.OutcomeFailed && !test.Stop:
		return false, test.Slices, fmt.Sprintf("driver %s failed the self-test (%s); repeat it with `xsched doctor --self-test`", r.version, test.Reason)
	case r.grade == Measured:
		return true, !tested || test.Slices || test.Outcome != driver.OutcomeFailed, ""
	case passed:
		return true, test.Slices, ""
	case r.grade == Unlisted:
		return false, false, r.reason
	case tested:
		return false, false, fmt.Sprintf("driver %s has not passed the self-test (%s); level 1 until it does", r.version, test.Reason)
	}
	return false, false, fmt.Sprintf("driver %s has not passed the self-test yet; level 1 until it does", r.version)
}

// untouchable explains why the driver must not be called at all; empty if it may.
func (r *release) untouchable() string {
	if r.grade >= SameABI || r.grade == Unlisted && r.levels.anyPassed() {
		return ""
	}
	return r.reason
}

// Negative probe evidence: processes required, and lifetime.
const (
	refusalsNeeded = 3
	refusalAge     = 10 * time.Minute
)

// untouchable explains why the loaded driver must not be called; empty if it may.
func (d *Driver) untouchable() string {
	if d.ungated {
		return ""
	}
	return d.release.Load().untouchable()
}
