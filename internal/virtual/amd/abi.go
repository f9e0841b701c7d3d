// SPDX-License-Identifier: Apache-2.0

// Package vamd is the virtual AMD GPU: a process that stands in for the kernel's amdkfd driver,
// /dev/kfd and its files in sysfs and debugfs. It returns the driver's error codes in the driver's
// order. A GPU model executes submitted work, so a suspended queue makes no progress. The device
// imitates the driver's source, not the hardware.
package vamd

import "xsched/internal/driver/amd/abi"

const (
	minorRingTest = 17 // below interface 1.17 CREATE_QUEUE has its older form

	// Requests of the virtual device, which submit work in place of packets and doorbells.
	iocSubmit  = 0xC0404BE0 // struct vk_submit of shim/virtual/vkfd.h
	iocRetired = 0xC0204BE1 // queue_id/4 0, wait/4 4, sequence 8; out: retired 16, checksum 24
)

// handlers by the number of a request. The driver pads a shorter argument with zeros.
var handlers = byNumber(map[uint32]func(*Kernel, *call){
	abi.AMDKFD_IOC_GET_VERSION:               (*Kernel).getVersion,
	abi.AMDKFD_IOC_CREATE_QUEUE:              (*Kernel).createQueue,
	abi.AMDKFD_IOC_DESTROY_QUEUE:             (*Kernel).destroyQueue,
	abi.AMDKFD_IOC_SET_MEMORY_POLICY:         accept,
	abi.AMDKFD_IOC_GET_CLOCK_COUNTERS:        (*Kernel).getClocks,
	abi.AMDKFD_IOC_GET_PROCESS_APERTURES:     (*Kernel).getApertures,
	abi.AMDKFD_IOC_UPDATE_QUEUE:              (*Kernel).updateQueue,
	abi.AMDKFD_IOC_CREATE_EVENT:              (*Kernel).createEvent,
	abi.AMDKFD_IOC_DESTROY_EVENT:             (*Kernel).destroyEvent,
	abi.AMDKFD_IOC_SET_EVENT:                 (*Kernel).setEvent,
	abi.AMDKFD_IOC_RESET_EVENT:               (*Kernel).resetEvent,
	abi.AMDKFD_IOC_WAIT_EVENTS:               (*Kernel).waitEvents,
	abi.AMDKFD_IOC_SET_SCRATCH_BACKING_VA:    accept,
	abi.AMDKFD_IOC_GET_TILE_CONFIG:           refuse,
	abi.AMDKFD_IOC_SET_TRAP_HANDLER:          accept,
	abi.AMDKFD_IOC_GET_PROCESS_APERTURES_NEW: (*Kernel).getAperturesNew,
	abi.AMDKFD_IOC_ACQUIRE_VM:                (*Kernel).acquireVM,
	abi.AMDKFD_IOC_ALLOC_MEMORY_OF_GPU:       (*Kernel).allocMemory,
	abi.AMDKFD_IOC_FREE_MEMORY_OF_GPU:        (*Kernel).freeMemory,
	abi.AMDKFD_IOC_MAP_MEMORY_TO_GPU:         (*Kernel).mapMemory,
	abi.AMDKFD_IOC_UNMAP_MEMORY_FROM_GPU:     (*Kernel).unmapMemory,
	abi.AMDKFD_IOC_SET_CU_MASK:               (*Kernel).setCUMask,
	abi.AMDKFD_IOC_ALLOC_QUEUE_GWS:           (*Kernel).allocGWS,
	abi.AMDKFD_IOC_SET_XNACK_MODE:            refuse,
	abi.AMDKFD_IOC_AVAILABLE_MEMORY:          (*Kernel).available,
	abi.AMDKFD_IOC_RUNTIME_ENABLE:            (*Kernel).runtimeEnable,
	abi.AMDKFD_IOC_DBG_TRAP:                  (*Kernel).debugTrap,
	iocSubmit:                                (*Kernel).submit,
	iocRetired:                               (*Kernel).retired,
})

type handler struct {
	size int // of the argument
	do   func(*Kernel, *call)
}

func byNumber(requests map[uint32]func(*Kernel, *call)) map[uint32]handler {
	m := map[uint32]handler{}
	for request, do := range requests {
		m[abi.Number(request)] = handler{abi.Size(request), do}
	}
	return m
}

// sysfsType is the driver's own enum, by type of CREATE_QUEUE.
var sysfsType = [...]int{
	abi.KFD_IOC_QUEUE_TYPE_COMPUTE: 0, abi.KFD_IOC_QUEUE_TYPE_SDMA: 1, abi.KFD_IOC_QUEUE_TYPE_COMPUTE_AQL: 0,
	abi.KFD_IOC_QUEUE_TYPE_SDMA_XGMI: 4, abi.KFD_IOC_QUEUE_TYPE_SDMA_BY_ENG_ID: 5,
}

const (
	minRing      = 1024
	maxCUMask    = 1024
	maxSuspend   = 1024
	maxQueueID   = 1024
	mmapDoorbell = 3 << 62
	mmapMemory   = 1 << 62 // in place of what the graphics driver returns
	mmapGPUShift = 46
	pageBytes    = 4096
	eNOTSUPP     = 524 // internal to the kernel, but it reaches the caller

	classQueue   = 0x607f803f      // exceptions of queues
	classDevice  = 0xf80000000     // exceptions of devices
	classProcess = 0x1800000000000 // exceptions of processes

	eventDot byte = '.' // announces an event
)
