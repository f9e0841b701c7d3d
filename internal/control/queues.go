// SPDX-License-Identifier: Apache-2.0

package control

// HardwareQueues is what the hardware schedules of a program.
type HardwareQueues struct {
	PID    int             `json:"pid"`
	Queues []HardwareQueue `json:"queues"`
}

// HardwareQueue is a queue of AMD's driver, or a channel or a group of channels of NVIDIA's.
type HardwareQueue struct {
	Device string `json:"device"` // PCI address
	// Kind: compute, copy, or group (of channels).
	Kind    string `json:"kind"`
	Stopped bool   `json:"stopped"` // by the daemon, where it does that itself

	AMD    *AMDQueue      `json:"amd,omitempty"`
	NVIDIA *NVIDIAChannel `json:"nvidia,omitempty"`
}

// AMDQueue is a queue as its program announced it.
type AMDQueue struct {
	ID       uint32 `json:"id"` // as the driver numbers it
	GPUID    uint32 `json:"gpu_id"`
	Ring     uint64 `json:"ring"`
	Bytes    uint32 `json:"bytes"`
	Priority uint32 `json:"priority"`
	Late     bool   `json:"late"` // made while the others were paused, and paused too
}

// NVIDIAChannel is an object of NVIDIA's resource manager.
type NVIDIAChannel struct {
	Client  uint32 `json:"client"`
	Handle  uint32 `json:"handle"`
	Group   uint32 `json:"group"` // 0: it is one, or in none
	Class   uint32 `json:"class"`
	SliceUS int64  `json:"slice_us"` // of a group, in force; 0: not known
}
