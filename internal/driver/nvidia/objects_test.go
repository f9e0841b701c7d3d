// SPDX-License-Identifier: Apache-2.0

package nvidia

import (
	"context"
	"encoding/binary"
	"errors"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"xsched/internal/driver"
	"xsched/internal/driver/nvidia/abi"
	"xsched/internal/model"
)

const most = 4096

func newClient(t testing.TB, s *Objects, handle uint32) {
	t.Helper()
	fd, err := unix.MemfdCreate("fake", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.AddClient(handle, fd); err != nil {
		t.Fatal(err)
	}
}

func newObjects(t testing.TB, l Limits) *Objects {
	s := NewObjects(&Driver{transport: newFakeRM(), ungated: true}, l, &driver.Metrics{})
	t.Cleanup(s.Close)
	return s
}

// check verifies the invariants.
func (s *Objects) check(t testing.TB) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	count := 0
	for _, c := range s.clients {
		count += len(c.objects)
		below := 0
		for parent, children := range c.below {
			below += len(children)
			for h, o := range children {
				if c.objects[h] != o || o.parent != parent {
					t.Fatalf("%#x is recorded below %#x as %+v", h, parent, c.objects[h])
				}
			}
			if len(children) == 0 {
				t.Fatalf("an empty place below %#x", parent)
			}
		}
		if below != len(c.objects) {
			t.Fatalf("%d objects, %d have a place", len(c.objects), below)
		}
		for h, o := range c.objects {
			want := 1
			if up := c.objects[o.parent]; up != nil && o.parent != h {
				want = up.depth + 1
			}
			if o.depth != want || o.depth > maxDepth {
				t.Fatalf("%#x is %d deep, its parent says %d", h, o.depth, want)
			}
		}
	}
	if count != s.count || count > s.limits.Objects || len(s.clients) > s.limits.Clients {
		t.Fatalf("%d objects counted as %d in %d clients", count, s.count, len(s.clients))
	}
	if shown := s.shown.Load(); shown.clients != len(s.clients) || shown.rejected != s.rejected {
		t.Fatalf("shown %+v", shown)
	}
}

// A FREE stays cheap, however a process arranges its objects.
func TestFreeOfManyObjects(t *testing.T) {
	const channel = 0xC86F
	for name, fill := range map[string]func(alloc func(parent, handle uint32)){
		"chain": func(alloc func(parent, handle uint32)) {
			for h := uint32(1); h <= most; h++ {
				alloc(h-1, h)
			}
		},
		"chain from its end": func(alloc func(parent, handle uint32)) {
			for h := uint32(most); h > 0; h-- {
				alloc(h-1, h)
			}
		},
		"wide": func(alloc func(parent, handle uint32)) {
			for h := uint32(1); h <= most; h++ {
				alloc(min(h-1, 1), h)
			}
		},
		"circle": func(alloc func(parent, handle uint32)) {
			for h := uint32(1); h <= most; h++ {
				alloc(h%most+1, h)
			}
		},
		"bush": func(alloc func(parent, handle uint32)) {
			for h := uint32(1); h <= most; h++ {
				alloc(h/8, h)
			}
		},
	} {
		s := newObjects(t, Limits{Clients: 1, Objects: most})
		newClient(t, s, 7<<16)
		var refused int
		fill(func(parent, handle uint32) {
			if err := s.Alloc(7<<16, parent, handle, channel); errors.Is(err, errTooDeep) {
				refused++
			} else if err != nil {
				t.Fatal(err)
			}
		})
		s.check(t)
		before := s.count
		s.mu.Lock()
		visits := s.forget(s.clients[7<<16], 1)
		s.mu.Unlock()
		s.check(t)
		t.Logf("%s: %d too deep, %d visits, %d left", name, refused, visits, s.count)
		// Each removed object is visited once, plus the named one.
		if removed := before - s.count; visits > removed+1 {
			t.Errorf("%s: FREE of %d objects visited %d", name, removed, visits)
		}
	}
}

// The engine loop never blocks on the object lock or the MPS check.
func TestLoopNeverBlocks(t *testing.T) {
	r, s, _ := newFake(t)
	s.driver.mps = &mpsWatch{system: System{Root: t.TempDir()}}
	const c = 0xc1d00001
	r.newContext(t, s, c, fakeGPU, 2)
	if _, err := s.Resolve(context.Background()); err != nil {
		t.Fatal(err)
	}
	s.Timeslice(c, 10, 777)
	if _, err := s.Resolve(context.Background()); err != nil {
		t.Fatal(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.driver.mps.mu.Lock()
	defer s.driver.mps.mu.Unlock()
	done := make(chan int64, 1)
	go func() {
		_, _ = s.Why()
		done <- s.OwnSlice(fakeDevice)
	}()
	select {
	case us := <-done:
		if us != 777 {
			t.Errorf("own slice %d us", us)
		}
	case <-time.After(5 * time.Second):
		t.Fatal("it waits")
	}
}

func TestBudgetKnowsItsUsers(t *testing.T) {
	b := &Budget{Most: 3}
	s := newObjects(t, Limits{Clients: 4, Objects: 4, Files: b})
	if !b.InUse() {
		t.Error("a process without files yet lost its budget")
	}
	newClient(t, s, 1)
	s.Close()
	s.Close()
	if b.InUse() || b.users.Load() != 0 || b.used.Load() != 0 {
		t.Errorf("%d users, %d files at the end", b.users.Load(), b.used.Load())
	}
}

// FuzzObjects feeds arbitrary client input.
func FuzzObjects(f *testing.F) {
	f.Add([]byte{0, 1, 0, 0, 0, 1, 1, 1, 1, 1, 1, 2, 2, 1, 1, 2, 4, 0, 0, 0})
	f.Add([]byte{0, 1, 0, 0, 0, 1, 1, 2, 3, 1, 1, 2, 1, 3, 1, 1, 3, 2, 3, 3, 1, 2, 0, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		s := newObjects(t, Limits{Clients: 3, Objects: 40})
		fake := s.driver.transport.(*fakeRM)
		classes := []uint32{abi.NV01_DEVICE_0, abi.NV20_SUBDEVICE_0, abi.KEPLER_CHANNEL_GROUP_A, 0xC86F, 0xCBC0, 0x1234}
		for ; len(b) >= 5 && t.Context().Err() == nil; b = b[5:] {
			client, handle, parent := uint32(b[1]&3), uint32(b[2]&31), uint32(b[3]&31)
			class := classes[int(b[4])%len(classes)]
			switch b[0] % 6 {
			case 0:
				fd, err := unix.MemfdCreate("fake", unix.MFD_CLOEXEC)
				if err != nil {
					t.Skip(err)
				}
				fake.owner[client] = inode(fd)
				fake.clients[client] = map[uint32]*fakeObject{}
				_ = s.AddClient(client, fd)
			case 1, 2:
				if known := fake.clients[client]; known != nil && b[0]&64 == 0 { // mostly the truth
					kind := map[uint32]fakeKind{abi.NV20_SUBDEVICE_0: kindSub, abi.KEPLER_CHANNEL_GROUP_A: kindGroup, 0xC86F: kindChannel}
					known[handle] = &fakeObject{kind: kind[class], gpu: fakeGPU}
				}
				_ = s.Alloc(client, parent, handle, class)
			case 3:
				s.Free(client, handle)
			case 4:
				s.Timeslice(client, handle, uint64(binary.LittleEndian.Uint16(b[3:])))
			case 5:
				_, _ = s.Resolve(t.Context())
				want := model.Desired{Suspend: model.Level(b[2] % 4), Slice: time.Duration(b[3]) * time.Microsecond}
				_ = s.Target(fakeDevice).Apply(t.Context(), want)
			}
			s.check(t)
		}
		_, _ = s.Resolve(t.Context())
		s.mu.Lock()
		own := s.ownSlice(fakeDevice)
		s.mu.Unlock()
		if got := s.OwnSlice(fakeDevice); got != own {
			t.Errorf("published own slice %d, want %d", got, own)
		}
		s.Close()
		if s.count != 0 {
			t.Errorf("%d objects left", s.count)
		}
	})
}
