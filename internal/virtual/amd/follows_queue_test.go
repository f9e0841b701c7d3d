// SPDX-License-Identifier: Apache-2.0

package vamd

import (
	"encoding/binary"
	"testing"

	"golang.org/x/sys/unix"

	"xsched/internal/driver/amd/abi"
)

// TestCreateAddresses follows set_queue_properties_from_user (kfd_chardev.c).
func TestCreateAddresses(t *testing.T) {
	const kernel = 0xffff888000000000
	b := newBench(t, nil)
	for _, at := range []int{0, 8, 16, 56, 72} {
		b.expect("kernel address", b.create(at64(at, kernel)), unix.EFAULT)
	}
	b.expect("percentage comes first", b.create(at64(0, kernel), at32(44, 101)), unix.EINVAL)
	b.expect("the ring's address comes before its size", b.create(at64(0, kernel), at32(32, 4097)), unix.EFAULT)
	b.expect("the ring's size comes before the pointers", b.create(at64(8, kernel), at32(32, 4097)), unix.EINVAL)
	b.expect("addresses come before the type", b.create(at64(8, kernel), at32(40, 9)), unix.EFAULT)
	b.create()
	b.expect("kfd_ioctl_update_queue", b.update(at64(0, kernel)), unix.EFAULT)
}

// TestCreateBuffers follows kfd_queue_acquire_buffers and kfd_queue_buffer_get (kfd_queue.c).
func TestCreateBuffers(t *testing.T) {
	for _, gfx := range []uint32{90402, 90010, 100300, 110000} {
		b := newBench(t, func(c *Config) { c.GFX = gfx })
		areas := b.config.saveAreas()
		const elsewhere = 0x7f000000
		b.buffer(b.p, 0x40000, 8192)
		for what, puts := range map[string][]put{
			"no ring":                   {at64(0, 0)},
			"ring not mapped":           {at64(0, elsewhere)},
			"ring larger than its map":  {at32(32, 8192)},
			"ring smaller than its map": {at64(0, 0x40000)},
			"ring inside its map":       {at64(0, 0x41000)},
			"no write pointer":          {at64(8, 0)},
			"no read pointer":           {at64(16, 0)},
			"pointer in two pages":      {at64(8, 0x40000)},
			"end of pipe not mapped":    {at64(56, elsewhere), at64(64, 4096)},
			"end of pipe too large":     {at64(56, pointerAt), at64(64, 8192)},
			"control stack":             {at32(84, areas.controlStack+4096)},
			"save area too small":       {at32(80, areas.save-4096)},
			"save area not mapped":      {at64(72, elsewhere)},
			"no save area":              {at64(72, 0)},
		} {
			b.expect(what, b.create(puts...), unix.EINVAL)
		}
		b.expect("end of pipe", b.create(at64(56, pointerAt), at64(64, 4096)), 0)
		b.expect("a small ring's size is not compared", b.create(at64(0, 0x40000), at32(32, 1024)), 0)
		b.expect("copies need no save area", b.create(at32(40, abi.KFD_IOC_QUEUE_TYPE_SDMA), at64(72, 0), at32(80, 0), at32(84, 0)), 0)
		b.expect("the buffers come before the number of queues", b.create(at64(0, elsewhere)), unix.EINVAL)
	}
	older := newBench(t, func(c *Config) { c.Minor = 16 })
	older.expect("no check before 1.17", older.create(at64(0, 0x7f000000), at64(72, 0)), 0)
	other := newBench(t, nil)
	if o := other.call(0x40084B15, words(8, 4, gpu0+1), nil); o.result == 0 {
		t.Fatal("a VM without a file")
	}
	other.as(other.p, self, words(8, 4, gpu0+1), 0x40084B15, nil, 4)
	other.expect("mapped to another GPU", other.create(at32(36, gpu0+1)), unix.EINVAL)
}

// TestSaveAreas compares kfd_queue_ctx_save_restore_size (kfd_queue.c) with an MI308X: its
// descriptors have a control stack of 0x2000 and a save area of 0xba6000 bytes.
func TestSaveAreas(t *testing.T) {
	if got := DefaultConfig().saveAreas(); got.controlStack != 0x2000 || got.save != 0xba6000 {
		t.Errorf("%#x", got)
	}
}

// TestUnknownRequest follows kfd_ioctl (kfd_chardev.c) of both drivers; the number comes before the
// caller.
func TestUnknownRequest(t *testing.T) {
	for variant, want := range map[Variant]unix.Errno{Upstream: unix.ENOTTY, DKMS: unix.EINVAL} {
		b := newBench(t, func(c *Config) { c.Variant = variant })
		b.expect("unknown", b.call(0xC0084B7E, nil, nil), want)
		var got outcome
		b.Ioctl(b.p, 200, 200, 0xC0084B7E, nil, nil, false, -1, func(r int, _, _ []byte) { got.result = r })
		b.expect("unknown, by a child", got, want)
	}
}

// TestDoorbells follows allocate_doorbell and allocate_sdma_queue (kfd_device_queue_manager.c).
func TestDoorbells(t *testing.T) {
	b := newBench(t, nil)
	doorbell := func(o outcome) uint64 {
		t.Helper()
		if o.result != 0 {
			t.Fatal(o.result)
		}
		return binary.LittleEndian.Uint64(o.arg[24:]) & 0x1fff / 8
	}
	sdma := func(kind, engine uint32) outcome { return b.create(at32(40, kind), at32(88, engine)) }
	for i, got := range []uint64{
		doorbell(sdma(abi.KFD_IOC_QUEUE_TYPE_SDMA, 0)), doorbell(sdma(abi.KFD_IOC_QUEUE_TYPE_SDMA, 0)), doorbell(sdma(abi.KFD_IOC_QUEUE_TYPE_SDMA, 0)),
		doorbell(sdma(abi.KFD_IOC_QUEUE_TYPE_SDMA_XGMI, 0)), doorbell(sdma(abi.KFD_IOC_QUEUE_TYPE_SDMA_BY_ENG_ID, 5)),
		doorbell(b.create()), doorbell(b.create()),
	} {
		if want := []uint64{0x100, 0x10a, 0x300, 0x114, 0x132, 0, 1}[i]; got != want {
			t.Errorf("queue %d: doorbell %#x, want %#x", i, got, want)
		}
	}
	b.expect("destroy", b.call(0xC0084B03, words(8, 5), nil), 0)
	if got := doorbell(b.create()); got != 0 {
		t.Errorf("the free doorbell was not reused: %#x", got)
	}
	neighbour := b.Open(400, "neighbour")
	b.bind(neighbour)
	o := b.as(neighbour, 400, b.queueArg(), 0xC0604B02, nil, -1)
	if got := doorbell(o); got != 0 {
		t.Errorf("another process's first doorbell: %#x", got)
	}
	o = b.as(neighbour, 400, b.queueArg(at32(40, abi.KFD_IOC_QUEUE_TYPE_SDMA)), 0xC0604B02, nil, -1)
	if got := doorbell(o); got != 0x30a {
		t.Errorf("processes share the engines: %#x", got)
	}
	for range 16 - 4 {
		doorbell(sdma(abi.KFD_IOC_QUEUE_TYPE_SDMA, 0))
	}
	b.expect("all in use", sdma(abi.KFD_IOC_QUEUE_TYPE_SDMA, 0), unix.ENOMEM)
	b.Exit(400)
	b.expect("free again", sdma(abi.KFD_IOC_QUEUE_TYPE_SDMA, 0), 0)
}

// TestQueueLimit follows pqm_create_queue (kfd_process_queue_manager.c).
func TestQueueLimit(t *testing.T) {
	for gfx, limit := range map[uint32]int{90010: 127, 90402: 255, 90500: 255, 110000: 127} {
		b := newBench(t, func(c *Config) { c.GFX = gfx })
		for range limit {
			b.expect("queue", b.create(), 0)
		}
		b.expect("one too many", b.create(), unix.ENOSPC)
	}
}

// TestQueueNumbers follows find_available_queue_slot (kfd_process_queue_manager.c) of a stock driver
// and of one that derives the first numbers from the process.
func TestQueueNumbers(t *testing.T) {
	for numbers, want := range map[Numbering][]uint32{Lowest: {0, 1, 2, 3, 4, 5, 1}, ByPID: {400, 401, 402, 403, 0, 1, 401}} {
		b := newBench(t, func(c *Config) { c.Numbers = numbers })
		for i, id := range want {
			if i == len(want)-1 {
				b.expect("destroy", b.call(0xC0084B03, words(8, id), nil), 0)
			}
			if o := b.create(); o.result != 0 || u32(o.arg, 52) != id {
				t.Errorf("%s: queue %d is %d, want %d", numbers, i, u32(o.arg, 52), id)
			}
		}
	}
}
