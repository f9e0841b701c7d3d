// SPDX-License-Identifier: Apache-2.0

// Package abi is the part of the NVIDIA resource manager (RM) interface that XSched uses, in the
// vendor's spelling. All driver branches from R535 on share it. The parity test compares it, and
// the shim's C copy, with every published driver in testdata.
package abi

import "structs"

// From nv-ioctl-numbers.h and nv_escape.h: a request is _IOWR('F', number, bytes).
const (
	NV_ESC_RM_FREE    = 0x29
	NV_ESC_RM_CONTROL = 0x2A
	NV_ESC_RM_ALLOC   = 0x2B
)

// Request returns the ioctl number of an escape with an argument of the given size.
func Request(escape uint32, bytes int) uint32 {
	return 3<<30 | uint32(bytes)<<16 | 'F'<<8 | escape
}

// Classes, from the cl*.h headers.
const (
	NV01_ROOT              = 0x0000
	NV01_ROOT_CLIENT       = 0x0041
	NV01_DEVICE_0          = 0x0080
	NV20_SUBDEVICE_0       = 0x2080
	KEPLER_CHANNEL_GROUP_A = 0xA06C
)

// Channel, compute and copy classes carry the chip generation in their high byte.
const (
	ClassEndChannel = 0x6F
	ClassEndCopy    = 0xB5
	ClassEndCompute = 0xC0
)

// Control commands, from the ctrl*.h headers.
const (
	NV2080_CTRL_CMD_GPU_QUERY_COMPUTE_MODE_RULES = 0x20800131
	NV2080_CTRL_CMD_GPU_GET_ID                   = 0x20800142
	NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS        = 0x2080110B
	NV2080_CTRL_CMD_FB_GET_INFO_V2               = 0x20801303
	NVA06C_CTRL_CMD_GPFIFO_SCHEDULE              = 0xA06C0101
	NVA06C_CTRL_CMD_SET_TIMESLICE                = 0xA06C0103
	NVA06C_CTRL_CMD_GET_TIMESLICE                = 0xA06C0104
	NVA06C_CTRL_CMD_GET_INFO                     = 0xA06C0106
	NVC36F_CTRL_CMD_GPFIFO_GET_WORK_SUBMIT_TOKEN = 0xC36F0108

	NV2080_CTRL_FB_INFO_INDEX_HEAP_SIZE           = 0x09 // in KiB, without what RM keeps for itself
	NV2080_CTRL_FIFO_DISABLE_CHANNELS_MAX_ENTRIES = 64
)

// Status codes, from nvstatuscodes.h.
const (
	NV_OK                           = 0x00
	NV_ERR_BUSY_RETRY               = 0x03
	NV_ERR_INSERT_DUPLICATE_NAME    = 0x19
	NV_ERR_INSUFFICIENT_RESOURCES   = 0x1A
	NV_ERR_NO_MEMORY                = 0x51
	NV_ERR_INSUFFICIENT_PERMISSIONS = 0x1B
	NV_ERR_INVALID_ARGUMENT         = 0x1F
	NV_ERR_INVALID_CLASS            = 0x22
	NV_ERR_INVALID_CLIENT           = 0x23
	NV_ERR_INVALID_COMMAND          = 0x24
	NV_ERR_INVALID_DEVICE           = 0x26
	NV_ERR_INVALID_OBJECT           = 0x31
	NV_ERR_INVALID_OBJECT_HANDLE    = 0x33
	NV_ERR_INVALID_OBJECT_PARENT    = 0x36
	NV_ERR_INVALID_OWNER            = 0x39
	NV_ERR_INVALID_PARAM_STRUCT     = 0x3A
	NV_ERR_INVALID_STATE            = 0x40
	NV_ERR_NOT_SUPPORTED            = 0x56
	NV_ERR_OBJECT_NOT_FOUND         = 0x57
	NV_ERR_TIMEOUT                  = 0x65
)

// From nvos.h. The tag of a struct's first field names the driver's struct; the other tags name the
// driver's fields.
type (
	// NVOS00 is the argument of NV_ESC_RM_FREE.
	NVOS00 struct {
		_             structs.HostLayout `rm:"NVOS00_PARAMETERS"`
		HRoot         uint32             `rm:"hRoot"`
		HObjectParent uint32             `rm:"hObjectParent"`
		HObjectOld    uint32             `rm:"hObjectOld"`
		Status        uint32             `rm:"status"`
	}

	// NVOS21 is the short argument of NV_ESC_RM_ALLOC. R530 and older have no ParamsSize,
	// and their Status is at 24.
	NVOS21 struct {
		_             structs.HostLayout `rm:"NVOS21_PARAMETERS"`
		HRoot         uint32             `rm:"hRoot"`
		HObjectParent uint32             `rm:"hObjectParent"`
		HObjectNew    uint32             `rm:"hObjectNew"`
		HClass        uint32             `rm:"hClass"`
		PAllocParms   uint64             `rm:"pAllocParms"`
		ParamsSize    uint32             `rm:"paramsSize"`
		Status        uint32             `rm:"status"`
	}

	// NVOS64 is the long argument of NV_ESC_RM_ALLOC. R530 and older have 40 bytes.
	NVOS64 struct {
		_                structs.HostLayout `rm:"NVOS64_PARAMETERS"`
		HRoot            uint32             `rm:"hRoot"`
		HObjectParent    uint32             `rm:"hObjectParent"`
		HObjectNew       uint32             `rm:"hObjectNew"`
		HClass           uint32             `rm:"hClass"`
		PAllocParms      uint64             `rm:"pAllocParms"`
		PRightsRequested uint64             `rm:"pRightsRequested"`
		ParamsSize       uint32             `rm:"paramsSize"`
		Flags            uint32             `rm:"flags"`
		Status           uint32             `rm:"status"`
		Pad0             uint32
	}

	// NVOS54 is the argument of NV_ESC_RM_CONTROL.
	NVOS54 struct {
		_          structs.HostLayout `rm:"NVOS54_PARAMETERS"`
		HClient    uint32             `rm:"hClient"`
		HObject    uint32             `rm:"hObject"`
		Cmd        uint32             `rm:"cmd"`
		Flags      uint32             `rm:"flags"`
		Params     uint64             `rm:"params"`
		ParamsSize uint32             `rm:"paramsSize"`
		Status     uint32             `rm:"status"`
	}
)

// Parameters of the control commands, from ctrl2080fb.h, ctrl2080fifo.h, ctrl2080gpu.h, ctrla06c.h and ctrlc36f.h.
type (
	// DisableChannels is for NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS. PRunlistPreemptEvent
	// must be 0 for a call that waits for the effect.
	DisableChannels struct {
		_                      structs.HostLayout `rm:"NV2080_CTRL_FIFO_DISABLE_CHANNELS_PARAMS"`
		BDisable               uint8              `rm:"bDisable"`
		Pad0                   [3]uint8
		NumChannels            uint32 `rm:"numChannels"`
		BOnlyDisableScheduling uint8  `rm:"bOnlyDisableScheduling"`
		BRewindGpPut           uint8  `rm:"bRewindGpPut"`
		Pad1                   [6]uint8
		PRunlistPreemptEvent   uint64                                                `rm:"pRunlistPreemptEvent"`
		HClientList            [NV2080_CTRL_FIFO_DISABLE_CHANNELS_MAX_ENTRIES]uint32 `rm:"hClientList"`
		HChannelList           [NV2080_CTRL_FIFO_DISABLE_CHANNELS_MAX_ENTRIES]uint32 `rm:"hChannelList"`
	}

	// Timeslice is for NVA06C_CTRL_CMD_SET_TIMESLICE and _GET_TIMESLICE.
	Timeslice struct {
		_           structs.HostLayout `rm:"NVA06C_CTRL_TIMESLICE_PARAMS"`
		TimesliceUs uint64             `rm:"timesliceUs"`
	}

	// GroupInfo is for NVA06C_CTRL_CMD_GET_INFO.
	GroupInfo struct {
		_     structs.HostLayout `rm:"NVA06C_CTRL_GET_INFO_PARAMS"`
		TsgID uint32             `rm:"tsgID"`
	}

	// WorkSubmitToken is for NVC36F_CTRL_CMD_GPFIFO_GET_WORK_SUBMIT_TOKEN.
	WorkSubmitToken struct {
		_               structs.HostLayout `rm:"NVC36F_CTRL_CMD_GPFIFO_GET_WORK_SUBMIT_TOKEN_PARAMS"`
		WorkSubmitToken uint32             `rm:"workSubmitToken"`
	}

	// GPUID is for NV2080_CTRL_CMD_GPU_GET_ID.
	GPUID struct {
		_     structs.HostLayout `rm:"NV2080_CTRL_GPU_GET_ID_PARAMS"`
		GpuID uint32             `rm:"gpuId"`
	}

	// ComputeModeRules is for NV2080_CTRL_CMD_GPU_QUERY_COMPUTE_MODE_RULES.
	ComputeModeRules struct {
		_     structs.HostLayout `rm:"NV2080_CTRL_GPU_QUERY_COMPUTE_MODE_RULES_PARAMS"`
		Rules uint32             `rm:"rules"`
	}

	// FBInfo is an entry of NV2080_CTRL_CMD_FB_GET_INFO_V2.
	FBInfo struct {
		_     structs.HostLayout `rm:"NV2080_CTRL_FB_INFO"`
		Index uint32             `rm:"index"`
		Data  uint32             `rm:"data"`
	}

	// GetFBInfo begins the parameters of NV2080_CTRL_CMD_FB_GET_INFO_V2, with the first entry of the list.
	// FBInfoBytes is the size of the whole.
	GetFBInfo struct {
		_              structs.HostLayout `rm:"NV2080_CTRL_FB_GET_INFO_V2_PARAMS"`
		FbInfoListSize uint32             `rm:"fbInfoListSize"`
		FbInfoList     FBInfo             `rm:"fbInfoList"`
	}
)

// FBInfoBytes returns the size of NV2080_CTRL_FB_GET_INFO_V2_PARAMS in a driver branch from R535 on. R580 made
// the list large enough for what follows.
func FBInfoBytes(branch int) int {
	entries := 0x80
	switch {
	case branch < 545:
		entries = 0x36
	case branch < 560:
		entries = 0x37
	case branch < 580:
		entries = 0x39
	}
	return 4 + 8*entries
}
