// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"xsched/internal/model"
	"xsched/internal/virtual"
	vdevice "xsched/internal/virtual/device"
	gpumodel "xsched/internal/virtual/model"
)

// Device is the ground truth: the device's own record. Only the virtual GPU has one.
type Device interface {
	Processes(ctx context.Context) (map[int]DeviceProcess, error)
	// Record returns the holders of the device in an interval, and how long the kernels submitted in
	// it waited.
	Record(ctx context.Context, w Window) ([]Segment, []Wait, error)
}

// DeviceProcess holds the device's counters of one process.
type DeviceProcess struct {
	Kernels     uint64
	Preemptions uint64        // in mid-kernel
	Slice       time.Duration // of its compute group
}

// VGPU reads the virtual GPU's own records.
type VGPU struct{ Client *vdevice.Client }

var _ Device = VGPU{}

// Processes implements Device.
func (d VGPU) Processes(context.Context) (map[int]DeviceProcess, error) {
	stats, err := d.Client.Stats()
	if err != nil {
		return nil, err
	}
	out := map[int]DeviceProcess{}
	for _, a := range stats.Clients { // oldest first: the newer of two with the same pid wins
		out[a.PID] = DeviceProcess{Kernels: a.Kernels, Preemptions: a.Preemptions, Slice: time.Duration(a.SliceNS)}
	}
	return out, nil
}

// Record implements Device.
func (d VGPU) Record(_ context.Context, w Window) ([]Segment, []Wait, error) {
	spans, err := d.Client.Timeline(model.Time(w.From), model.Time(w.To))
	if err != nil {
		return nil, nil, err
	}
	var segs []Segment
	for _, s := range spans {
		// The tenants use the first device.
		if s.Device == 0 && s.Kind != gpumodel.KindIdle {
			segs = append(segs, Segment{From: s.T0, To: s.T1, PID: s.PID, Switch: s.Kind == gpumodel.KindSwitch})
		}
	}
	records, err := d.Client.Waits(model.Time(w.From), model.Time(w.To))
	if err != nil {
		return nil, nil, err
	}
	waits := make([]Wait, 0, len(records))
	for _, k := range records {
		waits = append(waits, Wait(k))
	}
	// A window that the device has forgotten would look like idle time.
	if len(spans) > 0 && spans[0].T0 > w.From {
		return nil, nil, errors.New("the device no longer remembers the start of the block")
	}
	return Cut(segs, w), waits, nil
}

// Remaps returns how often all queues were unmapped and mapped; 0 on devices that never do.
func (d VGPU) Remaps() (uint64, error) {
	stats, err := d.Client.Stats()
	if err != nil {
		return 0, err
	}
	return stats.Remaps, nil
}

// startDevice starts the virtual GPU and injects the fault.
func (r *Rig) startDevice(ctx context.Context, fault string, memory model.Bytes) error {
	socket := r.DeviceSocket()
	// A real device does not wait for a CPU, so this one gets a higher scheduling class.
	argv := []string{"vgpu", "--platform", r.Platform, "--socket", socket, "--devices", "1"}
	if memory > 0 {
		argv = append(argv, "--device-memory", strconv.FormatInt(int64(memory), 10))
	}
	var s *service
	_, err := Prioritized(func() (err error) {
		s, err = r.startService(argv...)
		return err
	})
	if err != nil {
		return err
	}
	if err := r.until(ctx, s, func() error { return r.DialDevice(socket) }); err != nil {
		return err
	}
	if fault == "" || fault == FaultShimInert {
		return nil
	}
	if err := r.Device.(VGPU).Client.SetFault(fault); err != nil {
		return fmt.Errorf("set fault: %w", err)
	}
	return nil
}

// virtual is the virtual GPU's platform.
func (r *Rig) virtual() virtual.Platform {
	p, _ := virtual.Find(r.Platform)
	return p
}

// DeviceSocket is the virtual GPU's.
func (r *Rig) DeviceSocket() string {
	return r.virtual().Socket(r.Dir)
}

func (r *Rig) DialDevice(socket string) error {
	client, err := vdevice.Dial(r.virtual().Watch(socket))
	if err != nil {
		return err
	}
	r.Device = VGPU{client}
	r.cleanup = append(r.cleanup, func() { _ = client.Close() })
	return nil
}
