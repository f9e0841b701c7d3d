// SPDX-License-Identifier: Apache-2.0

package control

// HardwareQueues lists what the hardware schedules for a process.
type HardwareQueues struct {
	PID    int             `json:"pid"`
	Queues []HardwareQueue `json:"queues"`
}

// HardwareQueue is a queue, a channel or a channel group.
type HardwareQueue struct {
	Driver string `json:"driver"`
	Device string `json:"device"` // PCI address
	// Kind: compute, copy, or group (of channels).
	Kind    string `json:"kind"`
	ID      uint64 `json:"id"`      // driver-assigned number or handle
	Stopped bool   `json:"stopped"` // suspended by the daemon; unknown if the program suspends itself
	// Details holds driver-specific fields; booleans are 0 or 1.
	Details map[string]uint64 `json:"details,omitempty"`
}
