// SPDX-License-Identifier: Apache-2.0

package nvidia

import (
	"context"
	"encoding/binary"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"xsched/internal/driver/nvidia/abi"
	"xsched/internal/model"
)

// flaky fails some FIFO_DISABLE and token calls without executing them.
type flaky struct {
	*fakeRM
	disables, tokens int // calls so far
	answer           func(disable bool, n int) Status
}

func (f *flaky) Ioctl(ctx context.Context, file *File, request uint32, arg, params []byte) error {
	cmd := uint32(arg[8]) | uint32(arg[9])<<8 | uint32(arg[10])<<16 | uint32(arg[11])<<24
	st := NV_OK
	switch cmd {
	case abi.NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS:
		f.disables++
		st = f.answer(true, f.disables)
	case abi.NVC36F_CTRL_CMD_GPFIFO_GET_WORK_SUBMIT_TOKEN:
		f.tokens++
		st = f.answer(false, f.tokens)
	}
	if st == NV_OK {
		return f.fakeRM.Ioctl(ctx, file, request, arg, params)
	}
	arg[28] = byte(st)
	return ctx.Err()
}

// A failed restore returns an error and never leaves channels in its intermediate stop.
func TestRestoreThatFails(t *testing.T) {
	for name, test := range map[string]struct {
		answer func(disable bool, n int) Status
		fails  bool
	}{
		"busy at once":        {func(d bool, n int) Status { return pick(d && n == 1, NV_ERR_BUSY_RETRY) }, true},
		"busy at the last":    {func(d bool, n int) Status { return pick(d && n == 4, NV_ERR_BUSY_RETRY) }, false},
		"timeout at the stop": {func(d bool, n int) Status { return pick(d && n == 3, NV_ERR_TIMEOUT) }, true},
		"never in time":       {func(d bool, _ int) Status { return pick(d, NV_ERR_TIMEOUT) }, true},
		"client gone":         {func(bool, int) Status { return NV_ERR_INVALID_CLIENT }, false},
		"one gone, the rest busy": {func(d bool, n int) Status {
			return pick(d && n == 1, NV_ERR_OBJECT_NOT_FOUND) + pick(!d, NV_ERR_BUSY_RETRY)
		}, false},
	} {
		r, s, list, fds := restorable(t, 8)
		apply(t, s.Target(fakeDevice), model.Desired{Suspend: model.LevelInterrupt})
		f := NewFile(fds[0])
		d := &Driver{ungated: true}
		d.transport = &flaky{fakeRM: r, answer: test.answer}
		if err := d.Restore(context.Background(), f, list[0]); (err != nil) != test.fails {
			t.Errorf("%s: %v", name, err)
		}
		if stopped := r.object(restoredClient, 100).stopped; !test.fails && name != "client gone" && stopped != "" {
			t.Errorf("%s: still stopped %q", name, stopped)
		}
		_ = f.Close()
	}
}

// restorable is a fake with one context of so many channels, and the data to restore it.
func restorable(t *testing.T, channels int) (*fakeRM, *Objects, []Restore, []int) {
	t.Helper()
	r, s, _ := newFake(t)
	r.newContext(t, s, restoredClient, fakeGPU, channels)
	if _, err := s.Resolve(t.Context()); err != nil {
		t.Fatal(err)
	}
	list, fds, err := s.Restores(t.Context(), fakeDevice)
	if err != nil {
		t.Fatal(err)
	}
	return r, s, list, fds
}

const restoredClient = 0xc1d00001

func pick(when bool, s Status) Status {
	if when {
		return s
	}
	return NV_OK
}

// After a timeout in the middle, the enable that follows the stop is still issued.
func TestRestoreOutOfTime(t *testing.T) {
	r, _, list, fds := restorable(t, 8)
	f := NewFile(fds[0])
	defer func() { _ = f.Close() }()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	d := &Driver{ungated: true}
	d.transport = &flaky{fakeRM: r, answer: func(disable bool, n int) Status {
		if disable && n == 4 {
			cancel() // between the stop and the following enable
		}
		return NV_OK
	}}
	err := d.Restore(ctx, f, list[0])
	if stopped := r.object(restoredClient, 100).stopped; stopped != "" {
		t.Errorf("still stopped %q", stopped)
	}
	if !errors.Is(err, context.Canceled) {
		t.Errorf("timeslices are not set: %v", err)
	}
}

// A daemon that died with its guardian leaves channels stopped, even twice, and a tiny timeslice.
// freeAll undoes that although this daemon has no record of it, and reads the timeslice back.
func TestFreeKnowsNoState(t *testing.T) {
	for name, left := range map[string]struct {
		stopped string
		slice   uint64
		want    uint64
	}{
		"running":             {"", 2048, 2048},
		"the program's slice": {"", 4096, 4096},
		"a policy's slice":    {"", 10_000, defaultSliceUS},
		"a share":             {"", 3333, defaultSliceUS},
		"stopped":             {"3", 1, defaultSliceUS},
		"stopped twice":       {"33", 1_000_000, defaultSliceUS},
	} {
		r, s, _ := newFake(t)
		const c = 0xc1d00001
		r.newContext(t, s, c, fakeGPU, 8)
		s.everyChannel = true
		for _, o := range r.clients[c] {
			if o.kind == kindChannel {
				o.stopped = left.stopped
			}
		}
		r.object(c, 10).slice = left.slice
		if _, err := s.Resolve(context.Background()); err != nil {
			t.Fatal(err)
		}
		freed, err := s.freeAll(context.Background())
		if err != nil || freed.Queues != 10 || freed.Slices != 1 {
			t.Errorf("%s: %v %v", name, freed, err)
		}
		if o := r.object(c, 100); o.stopped != "" || r.object(c, 91).stopped != "" {
			t.Errorf("%s: still stopped %q", name, o.stopped)
		}
		if us := r.object(c, 10).slice; us != left.want {
			t.Errorf("%s: %d us", name, us)
		}
	}
}

// A driver that accepts a timeslice without effect is not reported as restored.
func TestFreeReadsBack(t *testing.T) {
	r, s, _ := newFake(t)
	const c = 0xc1d00001
	r.newContext(t, s, c, fakeGPU, 8)
	if _, err := s.Resolve(context.Background()); err != nil {
		t.Fatal(err)
	}
	if _, err := s.freeAll(context.Background()); err != nil {
		t.Fatal(err)
	}
	apply(t, s.Target(fakeDevice), model.Desired{Slice: time.Microsecond})
	s.driver.transport = &ignoring{r}
	if _, err := s.freeAll(context.Background()); err == nil || !strings.Contains(err.Error(), "is 1 us after 2048 us") {
		t.Errorf("%v", err)
	}
}

// ignoring accepts timeslices without effect.
type ignoring struct{ *fakeRM }

func (i *ignoring) Ioctl(ctx context.Context, f *File, request uint32, arg, params []byte) error {
	if binary.NativeEndian.Uint32(arg[8:]) == abi.NVA06C_CTRL_CMD_SET_TIMESLICE {
		return nil
	}
	return i.fakeRM.Ioctl(ctx, f, request, arg, params)
}

// late executes some FIFO_DISABLE calls but answers that they timed out, or drops them.
type late struct {
	*fakeRM
	n    int // calls so far
	fate func(n int, lv2 bool) (executed, answered bool)
}

func (l *late) Ioctl(ctx context.Context, file *File, request uint32, arg, params []byte) error {
	if binary.NativeEndian.Uint32(arg[8:]) != abi.NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS {
		return l.fakeRM.Ioctl(ctx, file, request, arg, params)
	}
	l.n++
	executed, answered := l.fate(l.n, params[0] == 1 && params[8] == 1)
	var err error
	if executed {
		err = l.fakeRM.Ioctl(ctx, file, request, arg, params)
	}
	if !answered {
		binary.NativeEndian.PutUint32(arg[28:], uint32(NV_ERR_TIMEOUT))
	}
	return err
}

// A request that timed out may have taken effect. The next resume therefore does not rely on the state
// before it.
func TestResumeAfterTimeouts(t *testing.T) {
	const c = 0xc1d00001
	for name, test := range map[string]struct {
		stops int // attempts at the suspension
		fate  func(n int, lv2 bool) (executed, answered bool)
	}{
		// The resume at Lv2 enables twice, stops and enables: the stop takes effect, the last enable
		// does not.
		"inside a resume": {1, func(n int, _ bool) (bool, bool) { return n != 5, n != 4 && n != 5 }},
		// The enables of the first resumes are lost, and their stops take effect.
		"lost enables": {1, func(n int, lv2 bool) (bool, bool) { return lv2 || n > 16 || n%4 == 0, lv2 || n > 16 }},
		"three stops":  {3, func(_ int, lv2 bool) (bool, bool) { return true, !lv2 }},
	} {
		r, s, _ := newFake(t)
		r.newContext(t, s, c, fakeGPU, 2)
		if _, err := s.Resolve(context.Background()); err != nil {
			t.Fatal(err)
		}
		s.driver.transport = &late{fakeRM: r, fate: test.fate}
		target := s.Target(fakeDevice)
		for range test.stops {
			_ = target.Apply(context.Background(), model.Desired{Suspend: model.LevelDeactivate})
		}
		if test.stops > 1 {
			target.Invalidate() // as a worker does after a failed suspension
		}
		resumed := false
		for range 30 {
			resumed = target.Apply(context.Background(), model.Desired{}) == nil || resumed
		}
		if !resumed {
			t.Fatalf("%s: no resume succeeded", name)
		}
		for h, o := range r.clients[c] {
			if o.stopped != "" || o.parked {
				t.Errorf("%s: channel %#x is stopped (%q) after a successful resume", name, h, o.stopped)
			}
		}
	}
}

// An attached process frees a group without a word. The others are restored nevertheless.
func TestRestoresWithoutFreedGroup(t *testing.T) {
	r, s, list, fds := restorable(t, 2)
	closeAll(fds)
	if len(list) != 1 || len(list[0].Groups) != 1 {
		t.Fatalf("restores %+v", list)
	}
	r.mu.Lock()
	delete(r.clients[restoredClient], list[0].Groups[0].Handle)
	r.mu.Unlock()
	if done, err := s.freeAll(context.Background()); err != nil {
		t.Errorf("freed %v: %v", done, err)
	}
}

// manyFiles is a driver whose process has opened several control files since the attach.
type manyFiles struct {
	*fakeRM
	fds []int
}

func (m *manyFiles) Find(int) ([]Candidate, error) {
	var out []Candidate
	for _, fd := range m.fds {
		out = append(out, Candidate{FD: fd})
	}
	return out, nil
}

// After daemon and guardian died, the file of a recorded client is found among any number.
func TestReopenFindsLastFile(t *testing.T) {
	r, _, list, fds := restorable(t, 2)
	defer closeAll(fds)
	m := &manyFiles{fakeRM: r}
	for range 2 * maxFiles {
		fd, err := unix.MemfdCreate("other", unix.MFD_CLOEXEC)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = unix.Close(fd) }()
		m.fds = append(m.fds, fd)
	}
	m.fds = append(m.fds, fds[0])
	pidfd, err := unix.PidfdOpen(os.Getpid(), 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(pidfd) }()
	again, err := (&Driver{transport: m, ungated: true}).reopen(context.Background(), os.Getpid(), pidfd, wardState{Restores: list})
	if err != nil || again == nil || len(again.files) != 1 {
		t.Fatalf("%+v, %v", again, err)
	}
	again.Close()
}

// A group that an attach did not read gets its original timeslice by the same rule.
func TestSetSliceKnowsNoState(t *testing.T) {
	r, s, _ := newFake(t)
	const c = 0xc1d00001
	r.newContext(t, s, c, fakeGPU, 8)
	s.everyChannel = true
	r.object(c, 10).slice = 10_000
	if _, err := s.Resolve(context.Background()); err != nil {
		t.Fatal(err)
	}
	target := s.Target(fakeDevice)
	apply(t, target, model.Desired{Slice: time.Microsecond})
	apply(t, target, model.Desired{})
	if us := r.object(c, 10).slice; us != defaultSliceUS {
		t.Errorf("%d us, want the driver's default", us)
	}
}
