// SPDX-License-Identifier: Apache-2.0

package vamd

import "xsched/internal/driver/amd/abi"

// Doorbells of a process on a GPU, after enum AMDGPU_DOORBELL_ASSIGNMENT_LAYOUT1
// (amdgpu_doorbell.h). The odd queues of a copy engine use the second half.
const (
	doorbells       = 1024
	doorbellBytes   = 8
	doorbellMirror  = 512
	firstSDMA       = 0x100
	doorbellsEngine = 10
	lastNonCompute  = 0x1e8

	sdmaEngines   = 2
	xgmiEngines   = 14
	queuesPerSDMA = 8
)

// sdmaSlot is a hardware queue of a copy engine. All processes share the engines.
type sdmaSlot struct {
	engine, queue uint32
	used          bool // the zero value is no slot
}

// assignDoorbell follows allocate_doorbell (kfd_device_queue_manager.c). engine is of interest for
// KFD_IOC_QUEUE_TYPE_SDMA_BY_ENG_ID only.
func (g *gpu) assignDoorbell(p *Process, q *queue, engine uint32) bool {
	if !q.compute() {
		slot := g.freeSDMA(q.kind, engine)
		if !slot.used {
			return false
		}
		g.sdma[slot] = true
		q.sdma = slot
		q.doorbell = firstSDMA + slot.engine*doorbellsEngine + slot.queue%2*doorbellMirror + slot.queue/2
		return true
	}
	taken := map[uint32]bool{}
	for _, other := range p.queues {
		if other.gpu == q.gpu {
			taken[other.doorbell] = true
		}
	}
	for d := range uint32(doorbells) {
		// init_doorbell_bitmap (kfd_process.c) reserves those of other engines.
		if half := d % doorbellMirror; !taken[d] && (half < firstSDMA || half > lastNonCompute) {
			q.doorbell = d
			return true
		}
	}
	return false
}

// freeSDMA follows allocate_sdma_queue (kfd_device_queue_manager.c): consecutive queues go to
// different engines.
func (g *gpu) freeSDMA(kind, engine uint32) sdmaSlot {
	first, engines := uint32(0), uint32(sdmaEngines)
	switch kind {
	case abi.KFD_IOC_QUEUE_TYPE_SDMA_XGMI:
		first, engines = sdmaEngines, xgmiEngines
	case abi.KFD_IOC_QUEUE_TYPE_SDMA_BY_ENG_ID:
		if first, engines = engine, 1; engine >= sdmaEngines+xgmiEngines {
			return sdmaSlot{}
		}
	}
	for n := range engines * queuesPerSDMA {
		if slot := (sdmaSlot{first + n%engines, n / engines, true}); !g.sdma[slot] {
			return slot
		}
	}
	return sdmaSlot{}
}
