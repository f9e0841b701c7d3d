// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"context"

	"xsched/internal/model"
)

// HardwareQueue is something of a process's that the hardware schedules: a queue of AMD's
// driver, a channel or a group of channels of NVIDIA's.
type HardwareQueue struct {
	Device model.DeviceID
	Kind   string // compute, copy; of NVIDIA also group

	// AMD: the driver's number of the queue and of its GPU, and its ring.
	ID, GPUID uint32
	Ring      uint64
	Bytes     uint32
	Priority  uint32
	Late      bool // made while the others were stopped

	// NVIDIA: handles and class of the object; its group, 0 for one without.
	Client, Handle, Group, Class uint32
	SliceUS                      int64 // of a group: in force; 0: not known

	Stopped bool // by us; of AMD's the owner alone knows
}

// QueueLister is hardware that can tell its queues. It may block as long as the device does.
type QueueLister interface {
	HardwareQueues(ctx context.Context) ([]HardwareQueue, error)
}

// Catcher is hardware that counts the queues that appeared while the others were stopped, and
// were stopped too.
type Catcher interface{ Caught() uint64 }
