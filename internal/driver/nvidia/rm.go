// SPDX-License-Identifier: Apache-2.0

// Package nvidia stops and resumes a process's channels and sets channel group timeslices. Requests
// go to the NVIDIA resource manager (RM) on the process's own /dev/nvidiactl descriptor.
package nvidia

import (
	"fmt"

	"xsched/internal/driver/nvidia/abi"
)

// Status codes with a meaning here.
const (
	NV_OK                           Status = abi.NV_OK
	NV_ERR_BUSY_RETRY               Status = abi.NV_ERR_BUSY_RETRY
	NV_ERR_INSUFFICIENT_PERMISSIONS Status = abi.NV_ERR_INSUFFICIENT_PERMISSIONS
	NV_ERR_INVALID_CLIENT           Status = abi.NV_ERR_INVALID_CLIENT
	NV_ERR_INVALID_OBJECT           Status = abi.NV_ERR_INVALID_OBJECT
	NV_ERR_INVALID_OBJECT_HANDLE    Status = abi.NV_ERR_INVALID_OBJECT_HANDLE
	NV_ERR_INVALID_OWNER            Status = abi.NV_ERR_INVALID_OWNER
	NV_ERR_OBJECT_NOT_FOUND         Status = abi.NV_ERR_OBJECT_NOT_FOUND
	NV_ERR_TIMEOUT                  Status = abi.NV_ERR_TIMEOUT
)

// Status is RM's answer; as an error it is never NV_OK.
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

// transient statuses carry no evidence about the handle.
func (s Status) transient() bool { return s == NV_ERR_BUSY_RETRY || s == NV_ERR_TIMEOUT }

// gone statuses mean that this file no longer has the object or its client.
func (s Status) gone() bool {
	switch s {
	case NV_ERR_INVALID_CLIENT, NV_ERR_INVALID_OBJECT, NV_ERR_INVALID_OBJECT_HANDLE, NV_ERR_INVALID_OWNER, NV_ERR_OBJECT_NOT_FOUND:
		return true
	}
	return false
}

// absent statuses mean that the client has no object with that handle, of any class.
func (s Status) absent() bool {
	return s == NV_ERR_INVALID_OBJECT_HANDLE || s == NV_ERR_OBJECT_NOT_FOUND
}

// foreign statuses mean that the client belongs to another file.
func (s Status) foreign() bool {
	return s == NV_ERR_INVALID_CLIENT || s == NV_ERR_INVALID_OWNER || s == NV_ERR_INSUFFICIENT_PERMISSIONS
}

// disableChannels builds the request that stops or enables channels of the client whose file carries
// the call, so a handle can't reach into another client.
func disableChannels(disable, onlyScheduling bool, client uint32, channels []uint32) []byte {
	pairs := make([]entry, len(channels))
	for i, ch := range channels {
		pairs[i] = entry{client, ch}
	}
	return disablePairs(disable, onlyScheduling, pairs)
}

// entry names a channel of any client.
type entry struct{ client, channel uint32 }

// disablePairs builds the request that stops or enables channels of several clients. The kernel module
// passes the list to the firmware, and neither compares the clients with the file that carries the call:
// the caller must have probed each pair on the client's own file. Preconditions: at most
// NV2080_CTRL_FIFO_DISABLE_CHANNELS_MAX_ENTRIES pairs.
func disablePairs(disable, onlyScheduling bool, pairs []entry) []byte {
	p := abi.DisableChannels{NumChannels: uint32(len(pairs))}
	if disable {
		p.BDisable = 1
	}
	if disable && onlyScheduling {
		p.BOnlyDisableScheduling = 1
	}
	for i, one := range pairs {
		p.HClientList[i], p.HChannelList[i] = one.client, one.channel
	}
	return abi.Bytes(&p)
}
