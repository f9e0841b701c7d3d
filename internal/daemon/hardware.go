// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"errors"
	"maps"

	"golang.org/x/sys/unix"

	"xsched/internal/driver"
	"xsched/internal/driver/amd"
	"xsched/internal/driver/nvidia"
	"xsched/internal/hub"
	"xsched/internal/model"
)

// hardware is what a program that joined has on GPUs of whichever vendor: channels of
// NVIDIA's driver, queues of AMD's.
type hardware struct {
	*amd.Owner
	objects *nvidia.Objects // nil: no driver of NVIDIA's, and reason says why
	reason  string
}

var (
	_ hub.Hardware      = (*hardware)(nil)
	_ hub.QueueHardware = (*hardware)(nil)
)

func (d *Daemon) newHardware(uid int) hub.Hardware {
	h := &hardware{Owner: amd.NewOwner(d.amdDriver().Sources.Sysfs, d.metrics), reason: d.noDriver}
	if d.driver != nil {
		h.objects = nvidia.NewObjects(d.driver, d.limits(uid), d.metrics)
	}
	return h
}

var errNoDriver = errors.New("no driver of NVIDIA's here")

// AddClient takes over a control file of NVIDIA's driver.
func (h *hardware) AddClient(handle uint32, fd int) error {
	if h.objects == nil {
		_ = unix.Close(fd)
		return errNoDriver
	}
	return h.objects.AddClient(handle, fd)
}

// Alloc notes an object of NVIDIA's driver.
func (h *hardware) Alloc(client, parent, handle, class uint32) error {
	if h.objects == nil {
		return errNoDriver
	}
	return h.objects.Alloc(client, parent, handle, class)
}

// Free forgets an object of NVIDIA's driver.
func (h *hardware) Free(client, handle uint32) {
	if h.objects != nil {
		h.objects.Free(client, handle)
	}
}

// Timeslice notes a timeslice that the program set itself.
func (h *hardware) Timeslice(client, group uint32, us uint64) {
	if h.objects != nil {
		h.objects.Timeslice(client, group, us)
	}
}

// Resolve says what can be done to the program, by GPU.
func (h *hardware) Resolve(ctx context.Context) (caps map[model.DeviceID]driver.Capability, err error) {
	if h.objects != nil {
		caps, err = h.objects.Resolve(ctx)
	}
	out := maps.Clone(caps)
	if out == nil {
		out = map[model.DeviceID]driver.Capability{}
	}
	maps.Copy(out, h.Owner.Resolve())
	return out, err
}

// Target is the program on one GPU.
func (h *hardware) Target(gpu model.DeviceID) driver.Target {
	if h.objects == nil || h.Has(gpu) {
		return h.Owner.Target(gpu)
	}
	return h.objects.Target(gpu)
}

// Why says why a GPU is missing in Resolve.
func (h *hardware) Why() string {
	switch {
	case h.Known():
		return h.Owner.Why()
	case h.objects != nil:
		return h.objects.Why()
	}
	return h.reason
}

// OwnSlice is the timeslice the program has by itself.
func (h *hardware) OwnSlice(gpu model.DeviceID) int64 {
	if h.objects == nil {
		return 0
	}
	return h.objects.OwnSlice(gpu)
}

// HardwareQueues lists what the program has on GPUs of either vendor.
func (h *hardware) HardwareQueues(ctx context.Context) ([]driver.HardwareQueue, error) {
	all, err := h.Owner.HardwareQueues(ctx)
	if h.objects != nil && err == nil {
		var more []driver.HardwareQueue
		more, err = h.objects.HardwareQueues(ctx)
		all = append(all, more...)
	}
	return all, err
}

// Caught is how many appeared while the others were stopped.
func (h *hardware) Caught() uint64 {
	n := h.Owner.Caught()
	if h.objects != nil {
		n += h.objects.Caught()
	}
	return n
}

// Close lets go of all files.
func (h *hardware) Close() {
	if h.objects != nil {
		h.objects.Close()
	}
	h.Disconnect()
}
