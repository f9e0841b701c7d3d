// SPDX-License-Identifier: Apache-2.0

package nvidia

import (
	"fmt"
	"time"

	"xsched/internal/driver"
	"xsched/internal/model"
)

// release is the driver that is loaded now, with the evidence about it. A driver that
// was upgraded is another release: nothing that was learnt about the old one holds.
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

// Version is the loaded driver's, as of the last Refresh.
func (d *Driver) Version() string { return d.release.Load().version }

// readVersion asks the machine. The virtual GPU reports a version only if a file beside
// its socket says so, as tests of other drivers have it.
func (d *Driver) readVersion() (string, error) {
	v, err := d.system.DriverVersion()
	if err != nil && d.Virtual {
		return virtualVersion, nil
	}
	return v, err
}

// Refresh reads the driver's version again and says whether another one is loaded: the
// daemon may outlive an upgrade of the driver.
func (d *Driver) Refresh() (changed bool) {
	v, err := d.readVersion()
	if err != nil {
		return false // unloaded: whatever was known may come back
	}
	d.refresh.Lock()
	defer d.refresh.Unlock()
	if v == d.Version() {
		return d.loadTests()
	}
	r := newRelease(v)
	d.release.Store(r)
	// A cache that can't be read costs a probe.
	_ = d.loadLevels(r)
	d.loadTests()
	return true
}

// allowed says whether the evidence permits levels 2 and 3 on a GPU, and slices, and why not.
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

// untouchable says why this driver must not be called at all; empty: it may be.
func (r *release) untouchable() string {
	if r.grade >= SameABI || r.grade == Unlisted && r.levels.anyPassed() {
		return ""
	}
	return r.reason
}

// Negative evidence of probes: how many processes it takes, and how long it holds.
const (
	refusalsNeeded = 3
	refusalAge     = 10 * time.Minute
)

// untouchable says why the loaded driver must not be called at all; empty: it may be.
func (d *Driver) untouchable() string {
	if d.ungated {
		return ""
	}
	return d.release.Load().untouchable()
}
