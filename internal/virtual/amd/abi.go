// SPDX-License-Identifier: Apache-2.0

// Package vamd is a double of the kernel's amdkfd driver, /dev/kfd and what it shows
// in sysfs and debugfs, in a process of its own: queues, memory bookkeeping and the
// debugger's requests with the driver's own error codes in the driver's own order.
// A model of a GPU executes what is submitted to a queue, so that a paused queue
// really makes no progress. It imitates the text of the driver, not its hardware.
//
// The layouts are written down a second time here, apart from those that the
// scheduler uses: a mistake in one of them is found by the other.
package vamd

// From include/uapi/linux/kfd_ioctl.h: the numbers of the requests.
const (
	nrGetVersion       = 0x01
	nrCreateQueue      = 0x02
	nrDestroyQueue     = 0x03
	nrSetMemoryPolicy  = 0x04
	nrGetClockCounters = 0x05
	nrGetApertures     = 0x06
	nrUpdateQueue      = 0x07
	nrCreateEvent      = 0x08
	nrDestroyEvent     = 0x09
	nrSetEvent         = 0x0A
	nrResetEvent       = 0x0B
	nrWaitEvents       = 0x0C
	nrSetScratch       = 0x11
	nrGetTileConfig    = 0x12
	nrSetTrapHandler   = 0x13
	nrGetAperturesNew  = 0x14
	nrAcquireVM        = 0x15
	nrAllocMemory      = 0x16
	nrFreeMemory       = 0x17
	nrMapMemory        = 0x18
	nrUnmapMemory      = 0x19
	nrSetCUMask        = 0x1A
	nrAllocGWS         = 0x1E
	nrSetXNACK         = 0x21
	nrAvailableMemory  = 0x23
	nrRuntimeEnable    = 0x25
	nrDebugTrap        = 0x26

	// Below KFD 1.13 there is no debugger, below 1.17 the older form of CREATE_QUEUE.
	minorDebugger = 13
	minorRingTest = 17

	// Not of the driver: work for a queue, in place of packets and doorbells.
	nrSubmit  = 0xE0 // struct vk_submit of shim/virtual/vkfd.h
	nrRetired = 0xE1 // queue_id/4 0, wait/4 4, sequence 8; out: retired 16, checksum 24
)

// sizes of the arguments the driver knows: what a caller's request is shorter by is zero.
var sizes = map[uint32]int{
	nrGetVersion: 8, nrCreateQueue: 96, nrDestroyQueue: 8, nrSetMemoryPolicy: 32, nrGetClockCounters: 40,
	nrGetApertures: 400, nrUpdateQueue: 24, nrCreateEvent: 32, nrDestroyEvent: 8, nrSetEvent: 8, nrResetEvent: 8,
	nrWaitEvents: 24, nrSetScratch: 16, nrGetTileConfig: 40, nrSetTrapHandler: 24, nrGetAperturesNew: 16,
	nrAcquireVM: 8, nrAllocMemory: 40, nrFreeMemory: 8, nrMapMemory: 24, nrUnmapMemory: 24, nrSetCUMask: 16,
	nrAllocGWS: 16, nrSetXNACK: 4, nrAvailableMemory: 16, nrRuntimeEnable: 16, nrDebugTrap: 32,
	nrSubmit: 64, nrRetired: 32,
}

// Types of CREATE_QUEUE.
const (
	typeCompute = iota
	typeSDMA
	typeComputeAQL
	typeSDMAXGMI
	typeSDMAByEngine
)

// Types in sysfs: the driver's own enum.
var sysfsType = [...]int{typeCompute: 0, typeSDMA: 1, typeComputeAQL: 0, typeSDMAXGMI: 4, typeSDMAByEngine: 5}

const (
	maxPercentage = 100
	maxPriority   = 15
	minRing       = 1024
	maxCUMask     = 1024
	mmapDoorbell  = 3 << 62
	mmapMemory    = 1 << 62 // in place of what the graphics driver returns
	mmapGPUShift  = 46
	pageBytes     = 4096
	eNOTSUPP      = 524 // the kernel's own; it does reach the caller
)

// Operations of DBG_TRAP.
const (
	opEnable                = 0
	opDisable               = 1
	opSendRuntimeEvent      = 2
	opSetExceptions         = 3
	opLaunchOverride        = 4
	opLaunchMode            = 5
	opSuspendQueues         = 6
	opResumeQueues          = 7
	opSetWatch              = 8
	opClearWatch            = 9
	opSetFlags              = 10
	opQueryEvent            = 11
	opQueueSnapshot         = 13
	opDeviceSnapshot        = 14
	maxSuspend              = 1024
	snapshotEntry           = 64
	deviceEntry             = 120
	runtimeInfo             = 16
	contextHeader           = 40
	queueError              = 1 << 30
	queueInvalid            = 1 << 31
	ecQueueNew              = 1 << 30
	ecProcessRuntime        = 1 << 47
	classQueue              = 0x607f803f
	classProcess            = 0x1800000000000
	runtimeDisabled         = 0
	runtimeEnabled          = 1
	runtimeModeEnable       = 1
	runtimeModeTTMP         = 2
	eventDot           byte = '.'
)
