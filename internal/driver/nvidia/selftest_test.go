// SPDX-License-Identifier: Apache-2.0

package nvidia

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"xsched/internal/driver"
	"xsched/internal/embedded"
	"xsched/internal/model"
	vdevice "xsched/internal/virtual/device"
	vnvidia "xsched/internal/virtual/nvidia"
)

// virtualGPU starts a virtual GPU and returns a driver for it.
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
		{"lose-block", driver.OutcomeFailed, false, true, "its result is"},
		{"timeslice-ignored", driver.OutcomeFailed, true, false, "reads back as"},
	} {
		t.Run("fault "+c.fault, func(t *testing.T) {
			d, device, o := virtualGPU(t)
			if c.fault != "" {
				if err := device.SetFault(c.fault); err != nil {
					t.Fatal(err)
				}
			}
			r := d.selfTestOne(context.Background(), virtualID, driver.SelfTestKey{GPU: virtualID.String()}, o)
			if r.Outcome != c.outcome || r.Stop != c.stop || r.Slices != c.slices || !strings.Contains(r.Reason, c.reason) {
				t.Errorf("%+v", r)
			}
			if left := d.Users(nil)[virtualID]; len(left) > 0 {
				t.Errorf("processes %v were left on the GPU", left)
			}
		})
	}
}

// A device that never answers must not hang whoever asked for the test, nor leave its process.
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
	r := d.selfTestOne(ctx, virtualID, driver.SelfTestKey{}, o)
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
		r := d.selfTestOne(context.Background(), gpu, driver.SelfTestKey{}, o)
		if r.Outcome != driver.OutcomeInconclusive || r.Stop || r.Reason == "" {
			t.Errorf("%s: %+v", name, r)
		}
	}
}
