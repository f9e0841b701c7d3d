// SPDX-License-Identifier: Apache-2.0

// Package nvidia controls the hardware queues of a process through the NVIDIA
// resource manager (RM), with the process's own file descriptor of
// /dev/nvidiactl: stop and continue channels, set a channel group's timeslice.
package nvidia

import (
	"encoding/binary"
	"fmt"
)

// From nv-ioctl-numbers.h, nvos.h and the ctrl*.h headers of the open kernel
// module. Requests are _IOWR('F', nr, bytes).
const (
	nvEscRMFree    = 0x29
	nvEscRMControl = 0x2A
	nvEscRMAlloc   = 0x2B

	nvControlBytes = 32 // NVOS54_PARAMETERS
	nvAllocBytes   = 32 // NVOS21_PARAMETERS
	nvFreeBytes    = 16 // NVOS00_PARAMETERS
)

func iowr(nr, bytes uint32) uint32 { return 3<<30 | bytes<<16 | 'F'<<8 | nr }

// Classes, from the cl*.h headers. Channel, compute and copy classes carry the
// chip generation in front: only their end is the same.
const (
	NV01_ROOT        = 0x0000
	NV01_ROOT_CLIENT = 0x0041
	NV01_DEVICE_0    = 0x0080
	NV20_SUBDEVICE_0 = 0x2080

	KEPLER_CHANNEL_GROUP_A = 0xA06C

	classEndChannel = 0x6F
	classEndCompute = 0xC0
)

// Control commands.
const (
	NV2080_CTRL_CMD_GPU_GET_ID                    = 0x20800142
	NV2080_CTRL_CMD_GPU_QUERY_COMPUTE_MODE_RULES  = 0x20800131
	NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS         = 0x2080110B
	NVA06C_CTRL_CMD_SET_TIMESLICE                 = 0xA06C0103
	NVA06C_CTRL_CMD_GET_TIMESLICE                 = 0xA06C0104
	NVA06C_CTRL_CMD_GET_INFO                      = 0xA06C0106
	NVC36F_CTRL_CMD_GPFIFO_GET_WORK_SUBMIT_TOKEN  = 0xC36F0108
	NV2080_CTRL_FIFO_DISABLE_CHANNELS_MAX_ENTRIES = 64
)

// Status codes, from nvstatuscodes.h.
const (
	NV_OK                           Status = 0x00
	NV_ERR_BUSY_RETRY               Status = 0x03
	NV_ERR_INSUFFICIENT_PERMISSIONS Status = 0x1B
	NV_ERR_INVALID_CLIENT           Status = 0x23
	NV_ERR_INVALID_OBJECT           Status = 0x31
	NV_ERR_INVALID_OBJECT_HANDLE    Status = 0x33
	NV_ERR_INVALID_OWNER            Status = 0x39
	NV_ERR_OBJECT_NOT_FOUND         Status = 0x57
	NV_ERR_TIMEOUT                  Status = 0x65
)

// Status is what RM answered; as an error it is never NV_OK.
type Status uint32

var statusNames = map[Status]string{
	NV_OK: "ok", NV_ERR_BUSY_RETRY: "busy, retry", 0x17: "in use", 0x19: "duplicate name",
	0x1A: "insufficient resources", NV_ERR_INSUFFICIENT_PERMISSIONS: "insufficient permissions",
	0x1F: "invalid argument", 0x22: "invalid class", NV_ERR_INVALID_CLIENT: "invalid client",
	0x24: "invalid command", 0x26: "invalid device", NV_ERR_INVALID_OBJECT: "invalid object",
	NV_ERR_INVALID_OBJECT_HANDLE: "invalid object handle", 0x36: "invalid object parent",
	NV_ERR_INVALID_OWNER: "invalid owner", 0x3A: "invalid parameter struct", 0x3B: "invalid parameter",
	0x3D: "invalid pointer", 0x40: "invalid state", 0x51: "no memory", 0x56: "not supported",
	NV_ERR_OBJECT_NOT_FOUND: "object not found", NV_ERR_TIMEOUT: "timeout",
}

func (s Status) Error() string {
	if n, ok := statusNames[s]; ok {
		return fmt.Sprintf("RM status %#x (%s)", uint32(s), n)
	}
	return fmt.Sprintf("RM status %#x", uint32(s))
}

// transient statuses say nothing about the handle that was asked for.
func (s Status) transient() bool { return s == NV_ERR_BUSY_RETRY || s == NV_ERR_TIMEOUT }

// gone statuses say that the object or its client does not exist (any more) for this file.
func (s Status) gone() bool {
	switch s {
	case NV_ERR_INVALID_CLIENT, NV_ERR_INVALID_OBJECT, NV_ERR_INVALID_OBJECT_HANDLE, NV_ERR_INVALID_OWNER, NV_ERR_OBJECT_NOT_FOUND:
		return true
	}
	return false
}

// absent statuses say that the client has no object of that number, whatever its class.
func (s Status) absent() bool {
	return s == NV_ERR_INVALID_OBJECT_HANDLE || s == NV_ERR_OBJECT_NOT_FOUND
}

// foreign statuses say that the client is not this file's.
func (s Status) foreign() bool {
	return s == NV_ERR_INVALID_CLIENT || s == NV_ERR_INVALID_OWNER || s == NV_ERR_INSUFFICIENT_PERMISSIONS
}

// encodeControl fills NVOS54_PARAMETERS: hClient 0, hObject 4, cmd 8, flags 12,
// params 16 (the transport's), paramsSize 24, status 28.
func encodeControl(client, object, cmd uint32, paramsBytes int) []byte {
	b := make([]byte, nvControlBytes)
	binary.NativeEndian.PutUint32(b[0:], client)
	binary.NativeEndian.PutUint32(b[4:], object)
	binary.NativeEndian.PutUint32(b[8:], cmd)
	binary.NativeEndian.PutUint32(b[24:], uint32(paramsBytes))
	return b
}

func controlStatus(b []byte) Status { return Status(binary.NativeEndian.Uint32(b[28:])) }

// encodeAlloc fills NVOS21_PARAMETERS: hRoot 0, hParent 4, hObjectNew 8,
// hClass 12, pParams 16, paramsSize 24, status 28.
func encodeAlloc(root, parent, object, class uint32) []byte {
	b := make([]byte, nvAllocBytes)
	binary.NativeEndian.PutUint32(b[0:], root)
	binary.NativeEndian.PutUint32(b[4:], parent)
	binary.NativeEndian.PutUint32(b[8:], object)
	binary.NativeEndian.PutUint32(b[12:], class)
	return b
}

func allocResult(b []byte) (object uint32, s Status) {
	return binary.NativeEndian.Uint32(b[8:]), Status(binary.NativeEndian.Uint32(b[28:]))
}

// encodeFree fills NVOS00_PARAMETERS: hRoot 0, hParent 4, hObject 8, status 12.
func encodeFree(root, parent, object uint32) []byte {
	b := make([]byte, nvFreeBytes)
	binary.NativeEndian.PutUint32(b[0:], root)
	binary.NativeEndian.PutUint32(b[4:], parent)
	binary.NativeEndian.PutUint32(b[8:], object)
	return b
}

// encodeDisable fills NV2080_CTRL_FIFO_DISABLE_CHANNELS_PARAMS as l lays it
// out. All channels belong to one client, whose file carries the call: that
// way a handle can never reach into another client.
// Preconditions: at most l.disableMax channels.
func (l *layout) encodeDisable(disable, onlyScheduling bool, client uint32, channels []uint32) []byte {
	b := make([]byte, l.disableBytes)
	if disable {
		b[l.offDisable] = 1
	}
	if disable && onlyScheduling {
		b[l.offOnlyScheduling] = 1
	}
	binary.NativeEndian.PutUint32(b[l.offNumChannels:], uint32(len(channels)))
	for i, ch := range channels {
		binary.NativeEndian.PutUint32(b[l.offClients+4*i:], client)
		binary.NativeEndian.PutUint32(b[l.offChannels+4*i:], ch)
	}
	return b
}
