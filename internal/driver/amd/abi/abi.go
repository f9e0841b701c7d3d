// SPDX-License-Identifier: Apache-2.0

// Package abi is the part of the amdkfd interface that XSched and its virtual device use, in the
// driver's spelling. Many distributions ship a header without the debugger requests, so the
// numbers are defined here.
package abi

import "structs"

// From include/uapi/linux/kfd_ioctl.h: the requests of interface 1.17.
const (
	AMDKFD_IOC_GET_VERSION               = 0x80084B01
	AMDKFD_IOC_CREATE_QUEUE              = 0xC0604B02
	AMDKFD_IOC_DESTROY_QUEUE             = 0xC0084B03
	AMDKFD_IOC_SET_MEMORY_POLICY         = 0x40204B04
	AMDKFD_IOC_GET_CLOCK_COUNTERS        = 0xC0284B05
	AMDKFD_IOC_GET_PROCESS_APERTURES     = 0x81904B06
	AMDKFD_IOC_UPDATE_QUEUE              = 0x40184B07
	AMDKFD_IOC_CREATE_EVENT              = 0xC0204B08
	AMDKFD_IOC_DESTROY_EVENT             = 0x40084B09
	AMDKFD_IOC_SET_EVENT                 = 0x40084B0A
	AMDKFD_IOC_RESET_EVENT               = 0x40084B0B
	AMDKFD_IOC_WAIT_EVENTS               = 0xC0184B0C
	AMDKFD_IOC_SET_SCRATCH_BACKING_VA    = 0xC0104B11
	AMDKFD_IOC_GET_TILE_CONFIG           = 0xC0284B12
	AMDKFD_IOC_SET_TRAP_HANDLER          = 0x40184B13
	AMDKFD_IOC_GET_PROCESS_APERTURES_NEW = 0xC0104B14
	AMDKFD_IOC_ACQUIRE_VM                = 0x40084B15
	AMDKFD_IOC_ALLOC_MEMORY_OF_GPU       = 0xC0284B16
	AMDKFD_IOC_FREE_MEMORY_OF_GPU        = 0x40084B17
	AMDKFD_IOC_MAP_MEMORY_TO_GPU         = 0xC0184B18
	AMDKFD_IOC_UNMAP_MEMORY_FROM_GPU     = 0xC0184B19
	AMDKFD_IOC_SET_CU_MASK               = 0x40104B1A
	AMDKFD_IOC_ALLOC_QUEUE_GWS           = 0xC0104B1E
	AMDKFD_IOC_SET_XNACK_MODE            = 0xC0044B21
	AMDKFD_IOC_AVAILABLE_MEMORY          = 0xC0104B23
	AMDKFD_IOC_RUNTIME_ENABLE            = 0xC0104B25
	AMDKFD_IOC_DBG_TRAP                  = 0xC0204B26
)

// Number returns the part of a request that selects the driver's handler.
func Number(request uint32) uint32 { return request & 0xff }

// Size returns the length of a request's argument.
func Size(request uint32) int { return int(request >> 16 & 0x3fff) }

// Major is the interface's major version.
const Major = 1

// MinorDebugger is the first interface, 1.13, with DBG_TRAP and RUNTIME_ENABLE.
const MinorDebugger = 13

// Queue types of CREATE_QUEUE and limits of its arguments.
const (
	KFD_IOC_QUEUE_TYPE_COMPUTE        = 0
	KFD_IOC_QUEUE_TYPE_SDMA           = 1
	KFD_IOC_QUEUE_TYPE_COMPUTE_AQL    = 2
	KFD_IOC_QUEUE_TYPE_SDMA_XGMI      = 3
	KFD_IOC_QUEUE_TYPE_SDMA_BY_ENG_ID = 4

	KFD_MAX_QUEUE_PERCENTAGE = 100
	KFD_MAX_QUEUE_PRIORITY   = 15
)

// Operations of DBG_TRAP.
const (
	KFD_IOC_DBG_TRAP_ENABLE                   = 0
	KFD_IOC_DBG_TRAP_DISABLE                  = 1
	KFD_IOC_DBG_TRAP_SEND_RUNTIME_EVENT       = 2
	KFD_IOC_DBG_TRAP_SET_EXCEPTIONS_ENABLED   = 3
	KFD_IOC_DBG_TRAP_SET_WAVE_LAUNCH_OVERRIDE = 4
	KFD_IOC_DBG_TRAP_SET_WAVE_LAUNCH_MODE     = 5
	KFD_IOC_DBG_TRAP_SUSPEND_QUEUES           = 6
	KFD_IOC_DBG_TRAP_RESUME_QUEUES            = 7
	KFD_IOC_DBG_TRAP_SET_NODE_ADDRESS_WATCH   = 8
	KFD_IOC_DBG_TRAP_CLEAR_NODE_ADDRESS_WATCH = 9
	KFD_IOC_DBG_TRAP_SET_FLAGS                = 10
	KFD_IOC_DBG_TRAP_QUERY_DEBUG_EVENT        = 11
	KFD_IOC_DBG_TRAP_QUERY_EXCEPTION_INFO     = 12
	KFD_IOC_DBG_TRAP_GET_QUEUE_SNAPSHOT       = 13
	KFD_IOC_DBG_TRAP_GET_DEVICE_SNAPSHOT      = 14
)

// Exception masks, the bits of a queue's result, and the states and modes of the runtime.
const (
	KFD_EC_MASK_QUEUE_NEW       = 1 << 30
	KFD_EC_MASK_PROCESS_RUNTIME = 1 << 47

	KFD_DBG_QUEUE_ERROR_MASK   = 1 << 30
	KFD_DBG_QUEUE_INVALID_MASK = 1 << 31

	DEBUG_RUNTIME_STATE_DISABLED = 0
	DEBUG_RUNTIME_STATE_ENABLED  = 1

	KFD_RUNTIME_ENABLE_MODE_ENABLE_MASK    = 1
	KFD_RUNTIME_ENABLE_MODE_TTMP_SAVE_MASK = 2

	KFD_DBG_TRAP_FLAG_SINGLE_MEM_OP = 1
)

// RuntimeInfo is struct kfd_runtime_info, the result of KFD_IOC_DBG_TRAP_ENABLE.
type RuntimeInfo struct {
	_            structs.HostLayout
	RDebug       uint64
	RuntimeState uint32
	TTMPSetup    uint32
}

// QueueSnapshotEntry is struct kfd_queue_snapshot_entry.
type QueueSnapshotEntry struct {
	_                      structs.HostLayout
	ExceptionStatus        uint64
	RingBaseAddress        uint64
	WritePointerAddress    uint64
	ReadPointerAddress     uint64
	CtxSaveRestoreAddress  uint64
	QueueID                uint32
	GPUID                  uint32
	RingSize               uint32
	QueueType              uint32
	CtxSaveRestoreAreaSize uint32
	Reserved               uint32
}

// Sizes of RuntimeInfo, QueueSnapshotEntry, struct kfd_dbg_device_info_entry, and of wave_state in
// struct kfd_context_save_area_header, which is all that the driver writes.
const (
	RuntimeInfoBytes       = 16
	QueueSnapshotBytes     = 64
	DeviceInfoBytes        = 120
	ContextSaveHeaderBytes = 16
)
