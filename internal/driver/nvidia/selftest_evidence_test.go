// SPDX-License-Identifier: Apache-2.0

package nvidia

import (
	"context"
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"xsched/internal/driver"
	"xsched/internal/driver/nvidia/abi"
	"xsched/internal/identity"
	"xsched/internal/model"
	vdevice "xsched/internal/virtual/device"
)

// slowSuspend delays each suspend call.
type slowSuspend struct {
	Transport
	delay time.Duration
}

func (s slowSuspend) Ioctl(ctx context.Context, f *File, request uint32, arg, params []byte) error {
	if binary.NativeEndian.Uint32(arg[8:]) == abi.NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS && params[0] == 1 {
		time.Sleep(s.delay)
	}
	return s.Transport.Ioctl(ctx, f, request, arg, params)
}

// A suspend call that outlasts the kernel calls for a longer kernel, not for a failure.
func TestSlowSuspendCall(t *testing.T) {
	d, _, o := virtualGPU(t)
	d.transport = slowSuspend{d.transport, 2 * kernelTime}
	if r := d.selfTestOne(context.Background(), virtualID, o); r.Outcome != driver.OutcomePassed || r.Reason != "" {
		t.Errorf("%+v", r)
	}
}

// Errors of the test program are no evidence against the GPU.
func TestSelfTestProgramDies(t *testing.T) {
	for _, after := range []string{"undisturbed run", "timeslice", "suspend at level 3", "start a second program"} {
		t.Run(after, func(t *testing.T) {
			d, device, o := virtualGPU(t)
			watch := o.OnStep
			o.OnStep = func(gpu model.DeviceID, s driver.SelfTestStep) {
				watch(gpu, s)
				if s.Name == after {
					killClients(t, device)
				}
			}
			r := d.selfTestOne(context.Background(), virtualID, o)
			if r.Outcome != driver.OutcomeInconclusive || r.Stop || r.Reason == "" {
				t.Errorf("%+v", r)
			}
		})
	}
}

// killClients kills the processes on a virtual GPU of this test.
func killClients(t *testing.T, device *vdevice.Client) {
	t.Helper()
	stats, err := device.Stats()
	if err != nil {
		t.Error(err)
		return
	}
	for _, c := range stats.Clients {
		if c.PID != os.Getpid() {
			_ = syscall.Kill(c.PID, syscall.SIGKILL)
		}
	}
}

// A process that never ends must not block its killer.
func TestStopIsBounded(t *testing.T) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(pair[1])
	p := &testProgram{command: exec.Command("/bin/sleep", "60"), socket: pair[0], stderr: &tail{}, ended: make(chan struct{})}
	if err := p.command.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = p.command.Wait() }()
	done := make(chan struct{})
	go func() { p.stop(); close(done) }()
	select {
	case <-done:
	case <-time.After(2 * stopTime):
		t.Fatal("stop waits without limit")
	}
}

// An inconclusive result replaces neither a pass nor a failure, but a conclusive one replaces all.
func TestInconclusiveKeepsEvidence(t *testing.T) {
	for _, kept := range []driver.Outcome{driver.OutcomePassed, driver.OutcomeFailed} {
		d := gated(newFakeRM(), "550.54.14")
		save := func(o driver.Outcome) driver.Outcome {
			t.Helper()
			if err := d.saveTest(fakeDevice, driver.SelfTest{SelfTestKey: d.testKey(fakeDevice), Outcome: o}); err != nil {
				t.Fatal(err)
			}
			got, _ := d.release.Load().levels.tested(fakeDevice)
			return got.Outcome
		}
		for _, next := range [][2]driver.Outcome{
			{driver.OutcomeInconclusive, driver.OutcomeInconclusive},
			{kept, kept},
			{driver.OutcomeInconclusive, kept},
			{driver.OutcomePassed, driver.OutcomePassed},
		} {
			if got := save(next[0]); got != next[1] {
				t.Errorf("%s after %s: %s", next[0], kept, got)
			}
		}
	}
}

// stored returns a virtual driver with version 550.54.14, and a state directory with a passed test
// for it.
func stored(t *testing.T) (d *Driver, state string) {
	t.Helper()
	root := t.TempDir()
	d, state = NewVirtualDriver(filepath.Join(root, "vgpu.sock")), t.TempDir()
	pretend(t, d, "550.54.14")
	d.Refresh()
	d.keepTests(state, "v1")
	pass(t, d)
	return d, state
}

func pass(t *testing.T, d *Driver) {
	t.Helper()
	if err := d.saveTest(virtualID, driver.SelfTest{
		SelfTestKey: d.testKey(virtualID), Outcome: driver.OutcomePassed, Stop: true, Slices: true, When: time.Now(),
	}); err != nil {
		t.Fatal(err)
	}
}

// A driver that returns to a former version finds that version's results.
func TestResultsOfFormerVersion(t *testing.T) {
	d, _ := stored(t)
	for _, step := range []struct {
		version string
		stop    bool
	}{{"560.28.03", false}, {"550.54.14", true}} {
		pretend(t, d, step.version)
		d.Refresh()
		if stop, _, why := d.release.Load().allowed(virtualID); stop != step.stop {
			t.Errorf("%s: %v %q", step.version, stop, why)
		}
	}
}

// The keeper reports changes that a joining client noticed first, with self-tests and without.
func TestKeeperReportsEveryChange(t *testing.T) {
	d, state := stored(t)
	ctx, cancel := context.WithCancel(context.Background())
	changed, done := make(chan struct{}, 8), make(chan struct{})
	go func() {
		defer close(done)
		d.KeepTested(ctx, driver.SelfTestOptions{}, func() { changed <- struct{}{} })
	}()
	defer func() { cancel(); <-done }()
	<-changed // the state at its start
	pretend(t, d, "560.28.03")
	i := &instance{Driver: d, budgets: map[identity.User]*budget{}}
	i.NewSession(driver.SessionOptions{}).Close()
	if d.Version() != "560.28.03" {
		t.Fatal("the client did not notice")
	}
	wait := func(what string) {
		t.Helper()
		select {
		case <-changed:
		case <-time.After(2 * testPoll):
			t.Errorf("%s was not reported", what)
		}
	}
	wait("the new driver")
	other := NewVirtualDriver(filepath.Join(d.system.Root, "vgpu.sock"))
	other.keepTests(state, "v1")
	pass(t, other)
	i.NewSession(driver.SessionOptions{}).Close()
	if _, ok := d.release.Load().levels.tested(virtualID); !ok {
		t.Fatal("the client did not load the result")
	}
	wait("the new result")
}

// One look scans the processes once. While GPUs stay busy, slow scans are far apart.
func TestSelfTestScans(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := gated(newFakeRM(), measuredVersion)
		k := newTestKeeper(d, driver.SelfTestOptions{})
		gpus := []model.DeviceID{1, 2, 3}
		k.gpus = func() []model.DeviceID { return gpus }
		scans := 0
		k.scan = func() map[model.DeviceID][]int {
			scans++
			time.Sleep(500 * time.Millisecond)
			return map[model.DeviceID][]int{1: {7}, 2: {7}, 3: {7}}
		}
		k.look(context.Background())
		if scans != 1 {
			t.Errorf("%d scans for %d GPUs", scans, len(gpus))
		}
		for range 20 {
			time.Sleep(testPoll)
			k.look(context.Background())
		}
		if scans > 11 {
			t.Errorf("%d scans of half a second in 100 s", scans)
		}
	})
}

// Only the GPU's own statuses are observations.
func TestIsObservation(t *testing.T) {
	for err, want := range map[error]bool{
		NV_ERR_INSUFFICIENT_PERMISSIONS: true, Status(0x56): true, NV_ERR_BUSY_RETRY: false, NV_ERR_INVALID_CLIENT: false,
		errMissed: false, context.Canceled: false, unix.EPIPE: false, observed("x"): true,
	} {
		if got := isObservation(err); got != want {
			t.Errorf("%v: %v", err, got)
		}
	}
}
