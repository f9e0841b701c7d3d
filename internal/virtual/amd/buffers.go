// SPDX-License-Identifier: Apache-2.0

package vamd

import (
	"slices"

	"golang.org/x/sys/unix"
)

// The units of a virtual GPU, as in an MI308X.
const (
	simds        = 320
	simdsPerUnit = 4
	arrays       = 16
	eopBytes     = 4096
)

// xccs returns the number of compute dies. Each has its own save area.
func (c Config) xccs() uint32 {
	switch c.GFX / 100 {
	case 904, 905:
		return 4
	}
	return 1
}

func (c Config) ldsKiB() uint32 {
	if c.GFX == 90500 {
		return 160
	}
	return 64
}

// saveAreas are the sizes of a die's memory for suspended waves.
type saveAreas struct{ controlStack, save, debug uint32 }

// saveAreas follows kfd_queue_ctx_save_restore_size (kfd_queue.c).
func (c Config) saveAreas() saveAreas {
	units := simds / simdsPerUnit / c.xccs()
	waves, perWave := min(units*40, arrays*512), uint32(8)
	if c.GFX >= 100100 {
		waves, perWave = units*32, 12
	}
	registers := uint32(0x40000)
	switch c.GFX {
	case 90402, 90010, 90008, 90500:
		registers = 0x80000
	case 110000, 110001, 120000, 120001:
		registers = 0x60000
	}
	data := pages(units*(registers+0x4000+c.ldsKiB()<<10+0x1000)) * pageBytes
	stack := pages(40+waves*perWave+8) * pageBytes
	if c.GFX/10000 == 10 {
		stack = min(stack, 0x7000)
	}
	return saveAreas{controlStack: stack, save: stack + data, debug: (waves*32 + 63) / 64 * 64}
}

func pages[T uint32 | uint64](bytes T) T { return (bytes + pageBytes - 1) / pageBytes }

// user reports whether access_ok accepts an address.
func user(address uint64) bool { return int64(address) >= 0 }

// checkRing validates the common fields of CREATE_QUEUE and UPDATE_QUEUE, in the order of
// kfd_ioctl_update_queue (kfd_chardev.c).
func checkRing(percentage, priority uint32, ring uint64, bytes uint32) unix.Errno {
	switch {
	case percentage&0xff > 100, priority > 15:
		return unix.EINVAL
	case !user(ring):
		return unix.EFAULT
	case bytes&(bytes-1) != 0:
		return unix.EINVAL
	}
	return 0
}

// checkCreate follows set_queue_properties_from_user (kfd_chardev.c).
func checkCreate(c *call) unix.Errno {
	if e := checkRing(c.u32(44), c.u32(48), c.u64(0), c.u32(32)); e != 0 {
		return e
	}
	for _, at := range []int{16, 8, 56, 72} { // read and write pointer, end of pipe, save area
		if !user(c.u64(at)) {
			return unix.EFAULT
		}
	}
	return 0
}

// buffer follows kfd_queue_buffer_get (kfd_queue.c): a mapping on the GPU starts in the address's
// page and has exactly this size. A size below a page is not compared.
func (p *Process) buffer(gpu uint32, address, bytes uint64) bool {
	for _, m := range p.memory {
		if m.address/pageBytes == address/pageBytes && (bytes < pageBytes || pages(m.bytes) == bytes/pageBytes) && slices.Contains(m.gpus, gpu) {
			return true
		}
	}
	return false
}

// acquireBuffers follows kfd_queue_acquire_buffers (kfd_queue.c). The save area must be a buffer,
// because the virtual device has no SVM.
func (k *Kernel) acquireBuffers(c *call) bool {
	p, gpu := c.process, c.u32(36)
	if !p.buffer(gpu, c.u64(8), pageBytes) || !p.buffer(gpu, c.u64(16), pageBytes) || !p.buffer(gpu, c.u64(0), uint64(max(c.u32(32), minRing))) {
		return false
	}
	if q := (&queue{kind: c.u32(40)}); !q.compute() {
		return true
	}
	eop, want := c.u64(56), k.config.saveAreas()
	if eop != 0 && (c.u64(64) != eopBytes || !p.buffer(gpu, eop, eopBytes)) {
		return false
	}
	save, stack := c.u32(80), c.u32(84)
	if stack != want.controlStack || save < want.save {
		return false
	}
	return p.buffer(gpu, c.u64(72), uint64(pages((save+want.debug)*k.config.xccs()))*pageBytes)
}
