// SPDX-License-Identifier: Apache-2.0

package control

// HardwareQueues is what the hardware schedules of a program.
type HardwareQueues struct {
	PID    int             `json:"pid"`
	Queues []HardwareQueue `json:"queues"`
}

// HardwareQueue is a queue, a channel or a group of channels.
type HardwareQueue struct {
	Driver string `json:"driver"`
	Device string `json:"device"` // PCI address
	// Kind: compute, copy, or group (of channels).
	Kind    string `json:"kind"`
	ID      uint64 `json:"id"`      // the driver's number or handle
	Stopped bool   `json:"stopped"` // by the daemon; unknown where the program suspends itself
	// Details are the driver's own fields; a truth value is 0 or 1.
	Details map[string]uint64 `json:"details,omitempty"`
}
