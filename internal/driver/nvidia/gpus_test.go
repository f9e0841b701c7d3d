// SPDX-License-Identifier: Apache-2.0

package nvidia

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"xsched/internal/driver"
	"xsched/internal/driver/nvidia/abi"
	"xsched/internal/model"
)

const (
	gpuCount = 8
	oneRoot  = 0xc1d00001
	perGPU   = 1000 // handles of GPU i begin at i*perGPU
)

func gpuAt(i int) model.DeviceID { return model.MakeDeviceID(0, uint32(i)+1, 0, 0) }

// newGPUs creates a process with one RM client and a context on each of several GPUs.
func (r *fakeRM) newGPUs(t *testing.T, s *Objects, n int) {
	t.Helper()
	fd, err := unix.MemfdCreate("fake", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	r.mu.Lock()
	r.owner[oneRoot], r.clients[oneRoot] = inode(fd), map[uint32]*fakeObject{}
	r.mu.Unlock()
	if err := s.AddClient(oneRoot, fd); err != nil {
		t.Fatal(err)
	}
	for i := range n {
		r.addGPU(t, s, i)
	}
}

// addGPU creates and announces a context on one GPU.
func (r *fakeRM) addGPU(t *testing.T, s *Objects, i int) {
	t.Helper()
	base := uint32(i+1) * perGPU
	r.mu.Lock()
	objs := r.clients[oneRoot]
	objs[base+1] = &fakeObject{kind: kindSub, gpu: uint32(i+1) << 8}
	objs[base+2] = &fakeObject{kind: kindGroup, slice: 2048}
	for c := range uint32(3) {
		objs[base+10+c] = &fakeObject{kind: kindChannel}
	}
	r.mu.Unlock()
	for _, o := range [][3]uint32{
		{oneRoot, base, abi.NV01_DEVICE_0},
		{base, base + 1, abi.NV20_SUBDEVICE_0},
		{base, base + 2, abi.KEPLER_CHANNEL_GROUP_A},
		{base + 2, base + 10, 0xC86F},
		{base + 2, base + 11, 0xC86F},
		{base + 2, base + 12, 0xC86F},
		{base + 10, base + 20, 0xCBC0},
	} {
		if err := s.Alloc(oneRoot, o[0], o[1], o[2]); err != nil {
			t.Fatal(err)
		}
	}
}

func (r *fakeRM) stopped(i int) bool { return r.object(oneRoot, uint32(i+1)*perGPU+10).stopped != "" }

func newFakeGPUs(t *testing.T, d *Driver, r *fakeRM, n int) *Objects {
	t.Helper()
	s := NewObjects(d, Limits{Clients: 4, Objects: 300}, &driver.Metrics{})
	t.Cleanup(s.Close)
	r.newGPUs(t, s, n)
	return s
}

// TestGPUsStopInParallel: the stops of a process on 8 GPUs are in the driver at the same time. Each
// waits there until all have arrived.
func TestGPUsStopInParallel(t *testing.T) {
	r := newFakeRM()
	s := newFakeGPUs(t, &Driver{transport: r, ungated: true}, r, gpuCount)
	if caps, err := s.Resolve(t.Context()); err != nil || len(caps) != gpuCount {
		t.Fatalf("%d GPUs, %v", len(caps), err)
	}
	var arrived sync.WaitGroup
	arrived.Add(gpuCount)
	r.enter = func(cmd, _, _ uint32) {
		if cmd == abi.NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS {
			arrived.Done()
			arrived.Wait()
		}
	}
	done := make(chan error, gpuCount)
	for i := range gpuCount {
		go func() {
			done <- s.Target(gpuAt(i)).Apply(context.Background(), model.Desired{Suspend: model.LevelInterrupt})
		}()
	}
	timeout := time.After(10 * time.Second)
	for range gpuCount {
		select {
		case err := <-done:
			if err != nil {
				t.Error(err)
			}
		case <-timeout:
			t.Fatal("the stops wait for each other")
		}
	}
}

// TestHungGPU: a GPU that does not answer delays only its own operations. The others of the process
// get their capabilities, stop and resume, also while the process creates more objects.
func TestHungGPU(t *testing.T) {
	for name, d := range map[string]func(r *fakeRM) *Driver{
		"objects unproved": func(r *fakeRM) *Driver { return &Driver{transport: r, ungated: true} },
		"levels unproved":  func(r *fakeRM) *Driver { return gated(r, measuredVersion) },
	} {
		t.Run(name, func(t *testing.T) {
			const hung = 2
			r := newFakeRM()
			freed := make(chan struct{})
			first := sync.OnceFunc(func() { close(freed) })
			t.Cleanup(first)
			r.enter = func(_, _, object uint32) {
				if object/perGPU == hung+1 {
					<-freed
				}
			}
			s := newFakeGPUs(t, d(r), r, gpuCount)
			began := time.Now()
			caps, err := s.Resolve(t.Context())
			if !errors.Is(err, errSilent) || len(caps) != gpuCount-1 {
				t.Fatalf("%d GPUs, error %v", len(caps), err)
			}
			if took := time.Since(began); took > 10*patience {
				t.Errorf("the first answer took %v", took)
			}
			for i := range gpuCount {
				if i != hung && caps[gpuAt(i)].MaxLevel != model.LevelInterrupt {
					t.Errorf("GPU %d: %+v", i, caps[gpuAt(i)])
				}
			}
			stuck := make(chan error, 1)
			go func() {
				stuck <- s.Target(gpuAt(hung)).Apply(context.Background(), model.Desired{Suspend: model.LevelInterrupt})
			}()
			for i := range gpuCount {
				if i == hung {
					continue
				}
				apply(t, s.Target(gpuAt(i)), model.Desired{Suspend: model.LevelInterrupt})
				if !r.stopped(i) {
					t.Errorf("GPU %d runs", i)
				}
				apply(t, s.Target(gpuAt(i)), model.Desired{})
			}
			best := time.Hour // other load may delay one
			for range 5 {
				began = time.Now()
				if _, err := s.Resolve(t.Context()); !errors.Is(err, errSilent) {
					t.Errorf("error %v", err)
				}
				best = min(best, time.Since(began))
			}
			if best > patience {
				t.Errorf("a GPU known to be silent was waited for: %v", best)
			}
			first() // the GPU answers again
			<-stuck
			for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
				caps, err := s.Resolve(t.Context())
				if err == nil && len(caps) == gpuCount {
					break
				}
				if time.Now().After(deadline) {
					t.Fatalf("%d GPUs after it answered, %v", len(caps), err)
				}
			}
			apply(t, s.Target(gpuAt(hung)), model.Desired{Suspend: model.LevelInterrupt})
			if !r.stopped(hung) {
				t.Error("the GPU that answers again was not stopped")
			}
		})
	}
}

// TestContextOnAHungGPU: a process that stops on one GPU and opens a context on a hung one is still
// resumed on the first.
func TestContextOnAHungGPU(t *testing.T) {
	r := newFakeRM()
	s := newFakeGPUs(t, &Driver{transport: r, ungated: true}, r, 1)
	if _, err := s.Resolve(t.Context()); err != nil {
		t.Fatal(err)
	}
	apply(t, s.Target(gpuAt(0)), model.Desired{Suspend: model.LevelInterrupt})
	freed := make(chan struct{})
	defer close(freed)
	r.enter = func(_, _, object uint32) {
		if object/perGPU == 2 {
			<-freed
		}
	}
	r.addGPU(t, s, 1)
	began := time.Now()
	apply(t, s.Target(gpuAt(0)), model.Desired{})
	if took := time.Since(began); r.stopped(0) || took > 10*time.Second {
		t.Errorf("resumed %v after %v", !r.stopped(0), took)
	}
}

// TestGPULocksAreSeparate: operations on one GPU exclude each other, and operations on two do not.
func TestGPULocksAreSeparate(t *testing.T) {
	var l gpuLocks
	unlock := l.lock(1)
	other := l.lock(2) // would deadlock
	other()
	got := make(chan struct{})
	go func() {
		l.lock(1)()
		close(got)
	}()
	select {
	case <-got:
		t.Error("two operations on one GPU")
	case <-time.After(10 * time.Millisecond):
	}
	unlock()
	<-got
}
