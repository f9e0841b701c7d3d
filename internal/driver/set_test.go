// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"xsched/internal/model"
)

// fakeDriver opens unless absent; its instances attach with the given error.
type fakeDriver struct {
	Driver
	absent error
	attach error
	gpus   []model.DeviceID
	opens  int
}

func (d *fakeDriver) Name() string   { return "fake" }
func (d *fakeDriver) Frames() uint32 { return 1 }

func (d *fakeDriver) Open(Options) (Instance, error) {
	d.opens++
	if d.absent != nil {
		return nil, d.absent
	}
	return &fakeInstance{attach: d.attach, gpus: d.gpus}, nil
}

type fakeInstance struct {
	Instance
	attach error
	gpus   []model.DeviceID
}

func (i *fakeInstance) Devices() []model.DeviceID { return i.gpus }

func (i *fakeInstance) NewSession(SessionOptions) Session { return &fakeSession{} }

func (i *fakeInstance) Attach(context.Context, AttachRequest) (Attached, error) {
	if i.attach != nil {
		return nil, i.attach
	}
	return struct{ Attached }{}, nil
}

// fakeSession reports the given GPUs, each with the same target.
type fakeSession struct {
	Session
	gpus   map[model.DeviceID]Capability
	target Target
}

func (s *fakeSession) Why() (string, bool) { return "", false }

func (s *fakeSession) Resolve(context.Context) (map[model.DeviceID]Capability, error) {
	return s.gpus, nil
}
func (s *fakeSession) Target(model.DeviceID) Target { return s.target }

// A driver that does not recognize a process, or is unsupported, leaves it to the next driver.
func TestAttachTriesNextDriver(t *testing.T) {
	refuse := func(r Refusal) error { return &AttachError{Refusal: r, Err: errors.New("refused")} }
	for r, next := range map[Refusal]bool{
		RefusedNotUsed: true, RefusedSupport: true, RefusedRights: false, RefusedGone: false, RefusedUnavailable: false,
	} {
		s := OpenAll([]Driver{&fakeDriver{attach: refuse(r)}, &fakeDriver{}}, Options{}, "")
		if a, err := s.Attach(context.Background(), AttachRequest{}); (err == nil) != next || (a != nil) != next {
			t.Errorf("refusal %d: %v %v", r, a, err)
		}
		s = OpenAll([]Driver{&fakeDriver{attach: refuse(r)}, &fakeDriver{attach: refuse(RefusedNotUsed)}}, Options{}, "")
		var got *AttachError
		if _, err := s.Attach(context.Background(), AttachRequest{}); !errors.As(err, &got) || got.Refusal != r {
			t.Errorf("refusal %d: %v", r, err)
		}
	}
}

// A driver that appears after the start serves the next process. Attempts are rate-limited.
func TestLateDriver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &fakeDriver{absent: errors.New("no module")}
		s := OpenAll([]Driver{d}, Options{}, "")
		found := 0
		s.Found(func(Instance) { found++ })
		for range 10 {
			s.NewSession(SessionOptions{})
		}
		if d.opens != 1 || !s.Empty() || s.Absent() != "no module" {
			t.Errorf("opened %d times, empty %v, %q", d.opens, s.Empty(), s.Absent())
		}
		d.absent = nil
		time.Sleep(retryOpen)
		if _, err := s.Attach(context.Background(), AttachRequest{}); err != nil || found != 1 || s.Empty() || s.Absent() != "" {
			t.Errorf("%v, found %d, %q", err, found, s.Absent())
		}
		time.Sleep(retryOpen)
		s.NewSession(SessionOptions{})
		if d.opens != 2 || found != 1 {
			t.Errorf("opened %d times, found %d", d.opens, found)
		}
	})
}

// A suspension on a GPU that no driver reports fails. Resuming there is no error, and the target
// works once the GPU is back.
func TestTargetOfMissingGPU(t *testing.T) {
	const gpu = model.DeviceID(7)
	real := &fakeTarget{}
	part := &fakeSession{gpus: map[model.DeviceID]Capability{gpu: {}}, target: real}
	c := Combine("", Part{1, part})
	resolve := func() {
		t.Helper()
		if _, err := c.Resolve(context.Background()); err != nil {
			t.Fatal(err)
		}
	}
	resolve()
	part.gpus = nil
	resolve()
	target := c.Target(gpu)
	if err := target.Apply(context.Background(), stop); err == nil {
		t.Error("a suspension without effect succeeded")
	}
	if err := target.Apply(context.Background(), run); err != nil {
		t.Error(err)
	}
	part.gpus = map[model.DeviceID]Capability{gpu: {}}
	resolve()
	if err := target.Apply(context.Background(), stop); err != nil {
		t.Error(err)
	}
	if got, n := real.last(); n != 1 || got != stop {
		t.Errorf("%d operations, last %+v", n, got)
	}
}

// busDriver is an absent driver whose GPU the host has, or not.
type busDriver struct {
	fakeDriver
	gpus []string
}

func (d *busDriver) OnBus(string) []string { return d.gpus }

// The reason names the drivers of GPUs that the host has, or every driver if it shows no GPU.
func TestAbsentNamesTheHostsDriver(t *testing.T) {
	one, other := errors.New("no module one"), errors.New("no module other")
	for _, c := range []struct {
		gpus []string
		want string
	}{{nil, "no module one; no module other"}, {[]string{"0000:05:00.0"}, "no module other"}} {
		s := OpenAll([]Driver{&busDriver{fakeDriver: fakeDriver{absent: one}}, &busDriver{fakeDriver{absent: other}, c.gpus}}, Options{}, "")
		if s.Absent() != c.want {
			t.Errorf("%q, want %q", s.Absent(), c.want)
		}
	}
	// A driver that is present answers for the process; absent ones are no reason.
	s := OpenAll([]Driver{&fakeDriver{absent: one}, &fakeDriver{}}, Options{}, "")
	if why, known := s.NewSession(SessionOptions{}).Why(); known || why != "the program has no hardware queue yet" {
		t.Errorf("%q", why)
	}
}

// A driver that appears after the start lists its GPUs, also before a process uses one.
func TestLateDriverListsGPUs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &fakeDriver{absent: errors.New("no module"), gpus: []model.DeviceID{7}}
		s := OpenAll([]Driver{d}, Options{}, "")
		if got := s.Devices(); len(got) != 0 {
			t.Errorf("GPUs %v of an absent driver", got)
		}
		d.absent = nil
		time.Sleep(retryOpen)
		if got := s.Devices(); len(got) != 1 || got[0] != 7 {
			t.Errorf("GPUs %v after the module was loaded", got)
		}
	})
}
