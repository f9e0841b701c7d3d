// SPDX-License-Identifier: Apache-2.0

package nvidia

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"xsched/internal/driver"
	"xsched/internal/embedded"
	"xsched/internal/model"
	vdevice "xsched/internal/virtual/device"
	vnvidia "xsched/internal/virtual/nvidia"
)

// virtualGPU starts a virtual GPU and returns its driver.
func virtualGPU(t *testing.T) (*Driver, *vdevice.Client, driver.SelfTestOptions) {
	t.Helper()
	unpack := func(name string) string {
		path, err := embedded.Unpack(name)
		if err != nil {
			t.Skip(err)
		}
		return path
	}
	t.Setenv("XSCHED_CACHE", t.TempDir())
	dir, err := os.MkdirTemp("/tmp", "selftest")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	socket := filepath.Join(dir, "vgpu.sock")
	ready, ended := make(chan struct{}), make(chan error, 1)
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		ended <- vnvidia.Serve(ctx, vnvidia.Options{Socket: socket, Devices: 1, Ready: func() { close(ready) }})
	}()
	select {
	case <-ready:
	case err := <-ended:
		t.Fatal(err)
	}
	device, err := vdevice.Dial(socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = device.Close()
		cancel()
		<-ended
	})
	env := []string{
		"LD_PRELOAD=" + unpack(embedded.VirtualRM), "LD_LIBRARY_PATH=" + filepath.Dir(unpack(embedded.VirtualCUDA)),
		"XSCHED_VGPU_SOCKET=" + socket,
	}
	program := unpack(embedded.SelfTest)
	return NewVirtualDriver(socket), device, driver.SelfTestOptions{
		Program: func() (string, []string, error) { return program, env, nil },
		OnStep: func(_ model.DeviceID, s driver.SelfTestStep) {
			t.Logf("%-22s %v %8.2f ms %s", s.Name, s.OK, s.MS, s.Detail)
		},
	}
}

var virtualID = model.MakeDeviceID(0, 1, 0, 0)

func TestSelfTest(t *testing.T) {
	for _, c := range []struct {
		fault        string
		outcome      driver.Outcome
		stop, slices bool
		reason       string
	}{
		{"", driver.OutcomePassed, true, true, ""},
		{"suspend-noop", driver.OutcomeFailed, false, true, "suspend at level 3"},
		{"lose-block", driver.OutcomeFailed, false, true, "the result is"},
		{"timeslice-ignored", driver.OutcomeFailed, true, false, "reads back as"},
	} {
		t.Run("fault "+c.fault, func(t *testing.T) {
			d, device, o := virtualGPU(t)
			if c.fault != "" {
				if err := device.SetFault(c.fault); err != nil {
					t.Fatal(err)
				}
			}
			r := d.selfTestOne(context.Background(), virtualID, o)
			if r.Outcome != c.outcome || r.Stop != c.stop || r.Slices != c.slices || !strings.Contains(r.Reason, c.reason) {
				t.Errorf("%+v", r)
			}
			if left := d.Users(nil)[virtualID]; len(left) > 0 {
				t.Errorf("processes %v were left on the GPU", left)
			}
		})
	}
}

// A hung device must neither block the caller nor leave the test process behind.
func TestSelfTestEndsInTime(t *testing.T) {
	d, device, o := virtualGPU(t)
	watch := o.OnStep
	o.OnStep = func(gpu model.DeviceID, s driver.SelfTestStep) {
		watch(gpu, s)
		if s.Name == "find channels" {
			stats, err := device.Stats()
			if err != nil || len(stats.Clients) == 0 {
				t.Errorf("%+v %v", stats, err)
				return
			}
			for _, c := range stats.Clients {
				if err := device.SetFault(fmt.Sprintf("never-answer:%d", c.PID)); err != nil {
					t.Error(err)
				}
			}
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	start := time.Now()
	r := d.selfTestOne(ctx, virtualID, o)
	if r.Outcome == driver.OutcomePassed || time.Since(start) > 10*time.Second {
		t.Errorf("%v: %+v", time.Since(start), r)
	}
}

func TestSelfTestThatCannotRun(t *testing.T) {
	d, _, o := virtualGPU(t)
	good := o.Program
	for name, program := range map[string]func() (string, []string, error){
		"no program":  func() (string, []string, error) { return "", nil, embedded.ErrMissing },
		"no such":     func() (string, []string, error) { return "/nowhere/selftest", nil, nil },
		"another":     func() (string, []string, error) { return "/bin/false", nil, nil },
		"no libcuda":  func() (string, []string, error) { path, _, err := good(); return path, nil, err },
		"no such GPU": good,
	} {
		gpu := virtualID
		if name == "no such GPU" {
			gpu = model.MakeDeviceID(0, 9, 0, 0)
		}
		o.Program = program
		r := d.selfTestOne(context.Background(), gpu, o)
		if r.Outcome != driver.OutcomeInconclusive || r.Stop || r.Reason == "" {
			t.Errorf("%s: %+v", name, r)
		}
	}
}

// pretend sets the virtual GPU's driver version.
func pretend(t *testing.T, d *Driver, version string) {
	t.Helper()
	dir := filepath.Join(d.system.Root, "sys/module/nvidia")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "version"), []byte(version), 0o644); err != nil {
		t.Fatal(err)
	}
}

// A driver with the same ABI gains its levels from the automatic test, and the next daemon reuses
// the result.
func TestDaemonTestsByItself(t *testing.T) {
	d, device, o := virtualGPU(t)
	state := t.TempDir()
	d.keepTests(state, "v1")
	pretend(t, d, "550.54.14")
	if err := device.SetFault("suspend-noop"); err != nil {
		t.Fatal(err)
	}
	level := func(d *Driver) string { _, _, why := d.release.Load().allowed(virtualID); return why }
	keep := func(d *Driver, o driver.SelfTestOptions, until func() bool) {
		t.Helper()
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		done, changed := make(chan struct{}), make(chan struct{}, 8)
		go func() {
			defer close(done)
			d.KeepTested(ctx, o, func() { changed <- struct{}{} })
		}()
		for !until() {
			select {
			case <-changed:
			case <-ctx.Done():
				t.Fatalf("nothing happened: %s", level(d))
			}
		}
		cancel()
		<-done
	}
	keep(d, o, func() bool { return strings.Contains(level(d), "failed the self-test (suspend at level 3") })
	if err := device.ClearFaults(); err != nil {
		t.Fatal(err)
	}
	// The next daemon repeats a failed test.
	d = NewVirtualDriver(filepath.Join(d.system.Root, "vgpu.sock"))
	d.keepTests(state, "v1")
	if !strings.Contains(level(d), "failed") {
		t.Errorf("the failure was forgotten: %q", level(d))
	}
	keep(d, o, func() bool { return level(d) == "" })
	// A passed test is not repeated.
	d = NewVirtualDriver(filepath.Join(d.system.Root, "vgpu.sock"))
	d.keepTests(state, "v1")
	o.Program = func() (string, []string, error) { t.Error("tested again"); return "", nil, os.ErrNotExist }
	if level(d) != "" || newTestKeeper(d, o).look(context.Background()) {
		t.Errorf("%q", level(d))
	}
	// Unlisted drivers, and measured ones that need no evidence, are not tested automatically.
	pretend(t, d, "610.1")
	d.Refresh()
	if newTestKeeper(d, o).look(context.Background()) {
		t.Error("an unlisted driver was called")
	}
	pretend(t, d, measuredVersion)
	d.Refresh()
	o.OnlyIfNeeded = true
	if newTestKeeper(d, o).look(context.Background()) {
		t.Error("tested although not needed")
	}
}

// On request an unlisted driver is tested and gains its levels if it passes.
func TestUnlistedDriverOnRequest(t *testing.T) {
	d, _, o := virtualGPU(t)
	d.keepTests(t.TempDir(), "v1")
	pretend(t, d, "610.1")
	d.Refresh()
	if d.untouchable() == "" {
		t.Error("an unlisted driver may be called")
	}
	list, err := d.SelfTest(context.Background(), o)
	if err != nil || len(list) != 1 || list[0].Outcome != driver.OutcomePassed || list[0].Driver != "610.1" {
		t.Fatalf("%+v %v", list, err)
	}
	if why := d.untouchable(); why != "" {
		t.Error(why)
	}
	pretend(t, d, "525.60.11")
	if _, err := d.SelfTest(context.Background(), o); err == nil || !strings.Contains(err.Error(), "interface differs") {
		t.Error(err)
	}
}

// A test waits for an idle GPU: without limit if no level depends on it, else a minute.
// Inconclusive tests back off.
func TestSelfTestSchedule(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for version, most := range map[string]time.Duration{measuredVersion: 24 * time.Hour, "550.54.14": busyWait + testPoll} {
			d := gated(newFakeRM(), version)
			k := newTestKeeper(d, driver.SelfTestOptions{})
			users := map[model.DeviceID][]int{fakeDevice: {1}}
			k.scan = func() map[model.DeviceID][]int { return users }
			waited := func() time.Duration {
				start := time.Now()
				for k.users = nil; time.Since(start) < 24*time.Hour && !k.due(d.release.Load(), fakeDevice); k.users = nil {
					time.Sleep(testPoll)
				}
				return time.Since(start)
			}
			if w := waited(); w > most || w < busyWait {
				t.Errorf("%s: beside others after %v", version, w)
			}
			users = map[model.DeviceID][]int{}
			if w := waited(); w != 0 {
				t.Errorf("%s: alone after %v", version, w)
			}
			var pauses []time.Duration
			for range 9 {
				k.tried(fakeDevice)
				pauses = append(pauses, waited().Round(time.Minute))
			}
			if pauses[0] != time.Minute || pauses[1] != 2*time.Minute || pauses[8] != time.Hour {
				t.Errorf("%s: repeated after %v", version, pauses)
			}
			d.release.Load().levels.setTest(fakeDevice, driver.SelfTest{Outcome: driver.OutcomePassed})
			if k.due(d.release.Load(), fakeDevice) {
				t.Errorf("%s: tested again", version)
			}
		}
	})
}
