// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"xsched/internal/control"
	"xsched/internal/daemon"
	"xsched/internal/driver"
	"xsched/internal/driver/registry"
	"xsched/internal/embedded"
	"xsched/internal/model"
)

// Values of --self-test.
const (
	selfTestAuto = "auto" // real GPUs only
	selfTestOn   = "on"
	selfTestOff  = "off"
)

// setSelfTest configures a daemon's self-tests and the directory of their results.
func setSelfTest(o *daemon.Options, when string) error {
	switch when {
	case selfTestAuto, selfTestOn, selfTestOff:
	default:
		return usagef("--self-test %q is invalid; use auto, on or off", when)
	}
	o.StateDir = stateDir(o.Dir, o.Virtual)
	if when == selfTestOn || when == selfTestAuto && !o.Virtual {
		platform := ""
		if o.Virtual {
			platform = o.Platform
		}
		o.SelfTest = selfTestProgram(o.Dir, platform)
	}
	return nil
}

// Values of --sensors.
const (
	sensorsOn  = "on" // real GPUs only
	sensorsOff = "off"
)

// setSensors has a daemon read the sensors of real GPUs. The program is not a tenant.
func setSensors(o *daemon.Options, when string) error {
	if when != sensorsOn && when != sensorsOff {
		return usagef("--sensors %q is invalid; use on or off", when)
	}
	if when == sensorsOn && !o.Virtual {
		o.Sensors = func() (string, []string, error) {
			path, err := embedded.Unpack(embedded.Sensors)
			env := newEnvironment(os.Environ())
			env.set("LD_PRELOAD", "")
			env.set("XSCHED_DISABLE", "1")
			return path, env.list(), err
		}
	}
	return nil
}

// stateDir is the directory of self-test results. Those of a virtual GPU stay next to its socket,
// because they do not apply to real GPUs.
func stateDir(dir string, virtual bool) string {
	if virtual {
		return dir
	}
	return control.StateDir(os.Geteuid(), os.Getenv)
}

// selfTestProgram unpacks the test program. The program must not load the shim, because it is not
// a tenant. platform is that of the virtual GPU in dir; empty: real GPUs.
func selfTestProgram(dir, platform string) func() (string, []string, error) {
	return func() (string, []string, error) {
		path, err := embedded.Unpack(embedded.SelfTest)
		if err != nil {
			return "", nil, err
		}
		env := newEnvironment(os.Environ())
		env.set("LD_PRELOAD", "")
		env.set("XSCHED_DISABLE", "1")
		if platform == "" {
			return path, env.list(), nil
		}
		device, err := findPlatform(platform)
		if err != nil {
			return "", nil, err
		}
		kernel, err := embedded.Unpack(device.Kernel)
		if err != nil {
			return "", nil, err
		}
		vendor, err := embedded.Unpack(device.Vendor)
		if err != nil {
			return "", nil, err
		}
		env.set("LD_PRELOAD", kernel)
		env.prepend("LD_LIBRARY_PATH", filepath.Dir(vendor))
		pointAt(env, dir, platform)
		return path, env.list(), nil
	}
}

// selfTestReport is the result of `xsched doctor --self-test`.
type selfTestReport struct {
	OK      bool              `json:"ok"` // there were tests, and all passed
	Tests   []driver.SelfTest `json:"self_tests"`
	Skipped []string          `json:"skipped"`          // drivers without a test, and why
	Errors  []string          `json:"errors,omitempty"` // results that could not be saved, and why
	Note    string            `json:"note,omitempty"`
	Seconds float64           `json:"seconds"`
}

// runSelfTest tests the GPUs of this host, or the virtual one of a running daemon.
func runSelfTest(ctx context.Context, a *app, asJSON bool) error {
	place := driver.Place{Dir: a.dirs()[0]}
	platform := ""
	report := selfTestReport{Tests: []driver.SelfTest{}, Skipped: []string{}}
	if d, err := askDaemon(ctx, a); err == nil {
		report.Note = unusedResult(d.UID, os.Geteuid())
		if d.Virtual {
			device, err := findPlatform(d.Platform)
			if err != nil {
				return err
			}
			place, platform = driver.Place{Dir: d.Dir, Virtual: true, Socket: device.Socket(d.Dir)}, device.Name
		}
	}
	o := driver.SelfTestOptions{Program: selfTestProgram(place.Dir, platform)}
	if !asJSON {
		o.OnStep = func(gpu model.DeviceID, s driver.SelfTestStep) { writeStep(a.stdout, gpu, s) }
	}
	open := driver.Options{Place: place, StateDir: stateDir(place.Dir, place.Virtual), Version: version}
	denied := report.test(ctx, open, platform, o)
	if err := a.show(report, nil, asJSON, func(w io.Writer) { writeSelfTest(w, report) }); err != nil {
		return err
	}
	return report.failure(ctx, open.StateDir, denied)
}

// test tests the GPUs of all drivers, or of that of the virtual GPU. denied: results could not be saved
// for lack of permission.
func (r *selfTestReport) test(ctx context.Context, open driver.Options, platform string, o driver.SelfTestOptions) (denied bool) {
	start := time.Now()
	var absent []string
	present := false
	for _, d := range registry.All() {
		if open.Place.Virtual && d.Name() != platform {
			continue
		}
		i, err := d.Open(open)
		if err != nil {
			absent = append(absent, d.Name()+": "+err.Error())
			continue
		}
		present = true
		tests, err := testDriver(ctx, i, o)
		r.Tests = append(r.Tests, tests...)
		switch {
		case err != nil && len(tests) > 0:
			r.Errors = append(r.Errors, d.Name()+": "+err.Error())
			denied = denied || errors.Is(err, os.ErrPermission)
		case err != nil:
			r.Skipped = append(r.Skipped, d.Name()+": "+err.Error())
		}
	}
	if !present {
		r.Skipped = absent
	}
	failed := slices.ContainsFunc(r.Tests, func(t driver.SelfTest) bool { return t.Outcome != driver.OutcomePassed })
	r.OK = !failed && len(r.Tests) > 0 && len(r.Errors) == 0
	r.Seconds = time.Since(start).Seconds()
	return denied
}

// failure returns why a report is not OK.
func (r *selfTestReport) failure(ctx context.Context, dir string, denied bool) error {
	switch {
	case len(r.Tests) == 0:
		return fmt.Errorf("no GPU was tested: %s", strings.Join(r.Skipped, "; "))
	case len(r.Errors) > 0 && ctx.Err() != nil:
		return errors.New(strings.Join(r.Errors, "; "))
	case len(r.Errors) > 0:
		remedy := fmt.Sprintf("make %s writable and repeat the test", dir)
		if denied {
			remedy = "repeat the test with sudo"
		}
		return fmt.Errorf("%s; %s", strings.Join(r.Errors, "; "), remedy)
	case !r.OK:
		return errors.New("a self-test failed; see the report above")
	}
	return nil
}

// unusedResult explains why the running daemon ignores a result of this user; empty if it does not.
func unusedResult(daemonUID, uid int) string {
	if daemonUID != 0 || uid == 0 {
		return ""
	}
	return "the running daemon belongs to root and does not use this result; run `sudo xsched doctor --self-test`"
}

func testDriver(ctx context.Context, i driver.Instance, o driver.SelfTestOptions) ([]driver.SelfTest, error) {
	t, ok := i.(driver.SelfTester)
	if !ok {
		return nil, errors.New("has no self-test")
	}
	return t.SelfTest(ctx, o)
}

func writeStep(w io.Writer, gpu model.DeviceID, s driver.SelfTestStep) {
	mark := "ok"
	if !s.OK {
		mark = "FAILED"
	}
	fmt.Fprintf(w, "%v  %-6s  %-20s  %7.1f ms  %s\n", gpu, mark, s.Name, s.MS, printable(s.Detail))
}

func writeSelfTest(w io.Writer, r selfTestReport) {
	for _, t := range r.Tests {
		name := t.Name
		if name == "" {
			name = "GPU"
		}
		fmt.Fprintf(w, "%s %s, driver %s: %s", t.GPU, name, t.Driver, t.Outcome)
		if t.Reason != "" {
			fmt.Fprintf(w, " (%s)", printable(t.Reason))
		}
		fmt.Fprintln(w)
	}
	for _, s := range r.Skipped {
		fmt.Fprintln(w, "not tested:", printable(s))
	}
	if r.Note != "" {
		fmt.Fprintln(w, "note:", r.Note)
	}
}
