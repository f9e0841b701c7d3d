// SPDX-License-Identifier: Apache-2.0

package nvidia

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"xsched/internal/driver"
	"xsched/internal/driver/nvidia/abi"
	"xsched/internal/model"
)

func unhex(t *testing.T, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// Bytes computed by hand from the driver headers.
func TestBytes(t *testing.T) {
	got := disableChannels(true, true, 0xc1d00001, []uint32{0x5c000010, 0x5c000011})
	want := make([]byte, 536)
	copy(want, unhex(t, "01000000 02000000 0100 000000000000 0000000000000000 0100d0c1 0100d0c1"))
	copy(want[280:], unhex(t, "1000005c 1100005c"))
	if !bytes.Equal(got, want) {
		t.Errorf("disable % x", got[:32])
	}
	if on := disableChannels(false, true, 1, []uint32{2}); on[0] != 0 || on[8] != 0 {
		t.Error("enabling carries disable flags")
	}
	if d := decodeGPUID(0x0001<<16 | 0x3b<<8 | 0x02); d.String() != "0001:3b:02.0" {
		t.Errorf("gpu id %s", d)
	}
}

func TestVersions(t *testing.T) {
	dir := t.TempDir() + "/"
	if _, err := (System{Root: dir}).DriverVersion(); err == nil {
		t.Error("a version without a driver")
	}
	_ = os.MkdirAll(filepath.Join(dir, "proc/driver/nvidia"), 0o755)
	_ = os.WriteFile(filepath.Join(dir, "proc/driver/nvidia/version"),
		[]byte("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build  (x)\nGCC version: 12.2.0\n"), 0o644)
	if v, err := (System{Root: dir}).DriverVersion(); err != nil || v != "580.159.04" {
		t.Errorf("%q %v", v, err)
	}
	_ = os.MkdirAll(filepath.Join(dir, "sys/module/nvidia"), 0o755)
	_ = os.WriteFile(filepath.Join(dir, "sys/module/nvidia/version"), []byte("470.1\n"), 0o644)
	v, err := System{Root: dir}.DriverVersion()
	if err != nil || v != "470.1" {
		t.Errorf("%q %v", v, err)
	}
}

func TestKernelTransportAcceptsOnlyTheDevice(t *testing.T) {
	for _, path := range []string{"/dev/null", os.TempDir(), "/proc/self/exe"} {
		fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		if (kernelTransport{}).Accept(fd) == nil {
			t.Errorf("%s was accepted", path)
		}
		_ = unix.Close(fd)
	}
	pair, _ := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET, 0)
	defer closeAll(pair[:])
	if (kernelTransport{}).Accept(pair[0]) == nil {
		t.Error("a socket was accepted as a device")
	}
	if (&virtualTransport{path: "/x/vgpu.sock"}).Accept(pair[0]) == nil {
		t.Error("accepted an unrelated socket as the virtual device")
	}
}

func apply(t *testing.T, target driver.Target, d model.Desired) {
	t.Helper()
	if err := target.Apply(context.Background(), d); err != nil {
		t.Fatal(err)
	}
}

func TestSuspendStopsComputeChannelsOnly(t *testing.T) {
	r, s, m := newFake(t)
	r.newContext(t, s, 0xc1d00001, fakeGPU, 150)
	caps, err := s.Resolve(context.Background())
	if err != nil || caps[fakeDevice].MaxLevel != model.LevelInterrupt || !caps[fakeDevice].Slices {
		t.Fatalf("%+v %v", caps, err)
	}
	target := s.Target(fakeDevice)
	apply(t, target, model.Desired{Suspend: model.LevelInterrupt})
	if got := r.lists; len(got) != 3 || got[0] != 64 || got[1] != 64 || got[2] != 22 {
		t.Errorf("chunks %v", got)
	}
	for h, want := range map[uint32]string{100: "3", 249: "3", 90: "", 91: ""} {
		if o := r.object(0xc1d00001, h); o.stopped != want {
			t.Errorf("channel %d is %q, want %q", h, o.stopped, want)
		}
	}
	apply(t, target, model.Desired{Suspend: model.LevelInterrupt})
	if len(r.lists) != 3 {
		t.Error("repeated an operation already in effect")
	}
	// RM counts disables, so a channel stopped harder must not be stopped again.
	apply(t, target, model.Desired{Suspend: model.LevelDeactivate})
	if got := r.object(0xc1d00001, 100).stopped; got != "3" || len(r.lists) != 3 {
		t.Errorf("level 3 to 2: %q", got)
	}
	apply(t, target, model.Desired{})
	if r.object(0xc1d00001, 100).stopped != "" || m.Suspends.Load() != 3 || m.Resumes.Load() != 3 {
		t.Errorf("not resumed: %d suspends, %d resumes", m.Suspends.Load(), m.Resumes.Load())
	}
	r.lists = nil
	target.Invalidate()
	apply(t, target, model.Desired{})
	if len(r.lists) == 0 || r.object(0xc1d00001, 100).stopped != "" || r.object(0xc1d00001, 90).stopped != "" {
		t.Error("channels in unknown state were not enabled") // the copy group's channels too
	}
	if m.Suspends.Load() != 3 {
		t.Errorf("a resume of channels in unknown state counted as %d suspends", m.Suspends.Load()-3)
	}
}

// Every sequence of levels, with or without Invalidate, ends with running channels after a resume.
func TestResumeFromEveryLevel(t *testing.T) {
	levels := []model.Level{model.LevelDeactivate, model.LevelInterrupt}
	for _, first := range levels {
		for _, second := range levels {
			for _, forget := range []bool{false, true} {
				r, s, _ := newFake(t)
				r.newContext(t, s, 0xc1d00001, fakeGPU, 8)
				target := s.Target(fakeDevice)
				apply(t, target, model.Desired{Suspend: first})
				if forget {
					target.Invalidate()
				}
				apply(t, target, model.Desired{Suspend: second})
				if o := r.object(0xc1d00001, 100); len(o.stopped) != 1 || o.stopped < strconv.Itoa(int(second)) {
					t.Errorf("%v, %v, forgotten %v: stopped %q", first, second, forget, o.stopped)
				}
				apply(t, target, model.Desired{})
				if o := r.object(0xc1d00001, 100); o.stopped != "" || o.parked {
					t.Errorf("%v, %v, forgotten %v, then run: stopped %q, parked %v", first, second, forget, o.stopped, o.parked)
				}
			}
		}
	}
}

func TestTimeslices(t *testing.T) {
	r, s, _ := newFake(t)
	const c = 0xc1d00001
	r.newContext(t, s, c, fakeGPU, 2)
	target := s.Target(fakeDevice)
	apply(t, target, model.Desired{})
	if r.calls[abi.NVA06C_CTRL_CMD_SET_TIMESLICE] != 0 || s.OwnSlice(fakeDevice) != 0 {
		t.Error("a timeslice changed without a request")
	}
	apply(t, target, model.Desired{Slice: time.Nanosecond})
	if r.object(c, 10).slice != 1 || r.object(c, 11).slice != 1024 || s.OwnSlice(fakeDevice) != 2048 {
		t.Errorf("slices %d %d own %d", r.object(c, 10).slice, r.object(c, 11).slice, s.OwnSlice(fakeDevice))
	}
	// The application sets its own timeslice: ours is applied again, theirs is restored.
	r.mu.Lock()
	r.clients[c][10].slice = 3000
	r.mu.Unlock()
	s.Timeslice(c, 10, 3000)
	apply(t, target, model.Desired{Slice: time.Microsecond})
	if r.object(c, 10).slice != 1 {
		t.Error("our timeslice was not applied again")
	}
	apply(t, target, model.Desired{})
	if r.object(c, 10).slice != 3000 {
		t.Errorf("restored %d", r.object(c, 10).slice)
	}
	// After a client recovery, Invalidate makes Apply set our timeslice again.
	apply(t, target, model.Desired{Slice: time.Second})
	r.mu.Lock()
	r.clients[c][10].slice = 3000
	r.mu.Unlock()
	target.Invalidate()
	apply(t, target, model.Desired{Slice: time.Second})
	if r.object(c, 10).slice != 1000000 {
		t.Error("not set again after a recovery")
	}
}

func TestChannelsCreatedWhileSuspended(t *testing.T) {
	r, s, _ := newFake(t)
	const c = 0xc1d00001
	r.newContext(t, s, c, fakeGPU, 1)
	target := s.Target(fakeDevice)
	apply(t, target, model.Desired{Suspend: model.LevelInterrupt})
	r.mu.Lock()
	r.clients[c][101] = &fakeObject{kind: kindChannel}
	r.mu.Unlock()
	if err := s.Alloc(c, 10, 101, 0xC86F); err != nil {
		t.Fatal(err)
	}
	apply(t, target, model.Desired{Suspend: model.LevelInterrupt})
	if r.object(c, 101).stopped != "3" {
		t.Error("a new channel of a suspended group runs")
	}
	// A channel freed without notice must not prevent stopping the others.
	apply(t, target, model.Desired{})
	r.mu.Lock()
	delete(r.clients[c], 100)
	r.mu.Unlock()
	apply(t, target, model.Desired{Suspend: model.LevelInterrupt})
	if r.object(c, 101).stopped != "3" {
		t.Error("a freed channel kept the others from being stopped")
	}
}

// A process that names another process's client and handles gains nothing and touches nothing.
func TestForeignHandles(t *testing.T) {
	r, victim, m := newFake(t)
	r.newContext(t, victim, 0xc1d00001, fakeGPU, 4)
	thief := NewObjects(victim.driver, Limits{Clients: 4, Objects: 300}, m)
	defer thief.Close()
	fd, _ := unix.MemfdCreate("thief", unix.MFD_CLOEXEC)
	if err := thief.AddClient(0xc1d00001, fd); err != nil {
		t.Fatal(err)
	}
	for h, class := range map[uint32]uint32{1: abi.NV01_DEVICE_0, 2: abi.NV20_SUBDEVICE_0, 10: abi.KEPLER_CHANNEL_GROUP_A, 100: 0xC86F} {
		_ = thief.Alloc(0xc1d00001, 1, h, class)
	}
	caps, err := thief.Resolve(context.Background())
	if err != nil || len(caps) != 0 {
		t.Errorf("the thief got %v, %v", caps, err)
	}
	apply(t, thief.Target(fakeDevice), model.Desired{Suspend: model.LevelInterrupt, Slice: time.Microsecond})
	if o := r.object(0xc1d00001, 100); o.stopped != "" || r.object(0xc1d00001, 10).slice != 2048 || len(r.lists) != 0 {
		t.Error("the victim was changed")
	}
	// The thief names a foreign channel inside its own client.
	r.newContext(t, thief, 0xc1d00002, fakeGPU, 1)
	_ = thief.Alloc(0xc1d00002, 10, 103, 0xC86F)
	apply(t, thief.Target(fakeDevice), model.Desired{Suspend: model.LevelInterrupt})
	if r.object(0xc1d00001, 103).stopped != "" || r.object(0xc1d00002, 100).stopped != "3" {
		t.Error("wrong channels stopped")
	}
	if err := thief.Alloc(0xdead, 1, 2, abi.NV20_SUBDEVICE_0); !errors.Is(err, errUnknown) {
		t.Errorf("an object of an unknown client: %v", err)
	}
}

func TestFreeAndLimits(t *testing.T) {
	r, s, _ := newFake(t)
	const c = 0xc1d00001
	r.newContext(t, s, c, fakeGPU, 3)
	f := s.clients[c].file
	s.Free(c, 10) // the group with its channels and the compute object below
	if n := len(s.clients[c].objects); n != 5 {
		t.Errorf("%d objects left", n)
	}
	s.Free(c, 1)
	if len(s.clients[c].objects) != 0 || s.count != 0 {
		t.Errorf("%d objects left, count %d", len(s.clients[c].objects), s.count)
	}
	s.Free(c, c)
	if err := f.use(func(int) error { return nil }); !errors.Is(err, errClosed) {
		t.Error("the file of a freed client is open")
	}
	r.newContext(t, s, c, fakeGPU, 1)
	var err error
	for h := uint32(1000); h < 2000 && err == nil; h++ {
		err = s.Alloc(c, 10, h, 0xC86F)
	}
	if !errors.Is(err, errTooMany) || s.count != 300 {
		t.Errorf("%d objects, %v", s.count, err)
	}
	for i := range 10 {
		fd, _ := unix.MemfdCreate("x", unix.MFD_CLOEXEC)
		err = s.AddClient(uint32(i+1), fd)
	}
	if !errors.Is(err, errTooMany) || len(s.clients) != 4 {
		t.Errorf("%d clients, %v", len(s.clients), err)
	}
	shared := &Budget{Most: 3}
	for range 2 {
		o := NewObjects(s.driver, Limits{Clients: 2, Objects: 9, Files: shared}, s.metrics)
		defer o.Close()
		for i := range 2 {
			fd, _ := unix.MemfdCreate("x", unix.MFD_CLOEXEC)
			err = o.AddClient(uint32(i+1), fd)
		}
	}
	if !errors.Is(err, errTooMany) || shared.used.Load() != 3 {
		t.Errorf("%d files of a budget of 3, %v", shared.used.Load(), err)
	}
	s.Close()
	fd, _ := unix.MemfdCreate("x", unix.MFD_CLOEXEC)
	if err := s.AddClient(1, fd); !errors.Is(err, errClosed) {
		t.Errorf("a client after the end: %v", err)
	}
}

// Close takes effect during a call: no new call starts, and the descriptor closes when the call
// returns.
func TestFileCloseDuringCall(t *testing.T) {
	fd, _ := unix.MemfdCreate("x", unix.MFD_CLOEXEC)
	f := NewFile(fd)
	in, out := make(chan struct{}), make(chan struct{})
	done := make(chan error)
	go func() {
		done <- f.use(func(int) error { close(in); <-out; return nil })
	}()
	<-in
	_ = f.Close()
	if err := f.use(func(int) error { return nil }); !errors.Is(err, errClosed) {
		t.Error("a call started after the close")
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != nil {
		t.Error("the descriptor was closed during a call")
	}
	close(out)
	<-done
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err == nil {
		t.Error("the descriptor leaked")
	}
}

func TestRestore(t *testing.T) {
	r, s, _ := newFake(t)
	const c = 0xc1d00001
	r.newContext(t, s, c, fakeGPU, 70)
	if _, err := s.Resolve(context.Background()); err != nil {
		t.Fatal(err)
	}
	list, fds, err := s.Restores(context.Background(), fakeDevice)
	if err != nil || len(list) != 1 || len(list[0].Channels) != 72 || list[0].Groups[0].OwnUS != 2048 {
		t.Fatalf("%+v %v", list, err)
	}
	apply(t, s.Target(fakeDevice), model.Desired{Suspend: model.LevelInterrupt, Slice: time.Microsecond})
	s.Close() // the daemon has died
	r.mu.Lock()
	delete(r.clients[c], 100) // and one channel was freed
	r.mu.Unlock()
	f := NewFile(fds[0])
	defer func() { _ = f.Close() }()
	if err := s.driver.Restore(context.Background(), f, list[0]); err != nil {
		t.Fatal(err)
	}
	for h := uint32(101); h < 170; h++ {
		if r.object(c, h).stopped != "" {
			t.Fatalf("channel %d is still stopped", h)
		}
	}
	if r.object(c, 10).slice != 2048 {
		t.Error("timeslice not restored")
	}
}
