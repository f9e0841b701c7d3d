// SPDX-License-Identifier: Apache-2.0

package nvidia

import (
	"context"
	"errors"
	"testing"

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
		r, s, _ := newFake(t)
		const c = 0xc1d00001
		r.newContext(t, s, c, fakeGPU, 8)
		if _, err := s.Resolve(context.Background()); err != nil {
			t.Fatal(err)
		}
		list, fds, err := s.Restores(context.Background(), fakeDevice)
		if err != nil {
			t.Fatal(err)
		}
		apply(t, s.Target(fakeDevice), model.Desired{Suspend: model.LevelInterrupt})
		f := NewFile(fds[0])
		d := &Driver{ungated: true}
		d.transport = &flaky{fakeRM: r, answer: test.answer}
		if err := d.Restore(context.Background(), f, list[0]); (err != nil) != test.fails {
			t.Errorf("%s: %v", name, err)
		}
		if stopped := r.object(c, 100).stopped; !test.fails && name != "client gone" && stopped != "" {
			t.Errorf("%s: still stopped %q", name, stopped)
		}
		_ = f.Close()
	}
}

func pick(when bool, s Status) Status {
	if when {
		return s
	}
	return NV_OK
}

// After a timeout in the middle, the enable that follows the stop is still issued.
func TestRestoreOutOfTime(t *testing.T) {
	r, s, _ := newFake(t)
	const c = 0xc1d00001
	r.newContext(t, s, c, fakeGPU, 8)
	if _, err := s.Resolve(context.Background()); err != nil {
		t.Fatal(err)
	}
	list, fds, err := s.Restores(context.Background(), fakeDevice)
	if err != nil {
		t.Fatal(err)
	}
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
	err = d.Restore(ctx, f, list[0])
	if stopped := r.object(c, 100).stopped; stopped != "" {
		t.Errorf("still stopped %q", stopped)
	}
	if !errors.Is(err, context.Canceled) {
		t.Errorf("timeslices are not set: %v", err)
	}
}
