// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"xsched/internal/control"
	"xsched/internal/model"
	vamd "xsched/internal/virtual/amd"
	vdevice "xsched/internal/virtual/device"
	gpumodel "xsched/internal/virtual/model"
)

// virtualDevice reads the virtual GPU's own records.
type virtualDevice struct{ client *vdevice.Client }

var _ Device = virtualDevice{}

// Processes implements Device.
func (d virtualDevice) Processes(context.Context) (map[int]DeviceProcess, error) {
	stats, err := d.client.Stats()
	if err != nil {
		return nil, err
	}
	out := map[int]DeviceProcess{}
	for _, a := range stats.Clients { // oldest first: of two with one pid the newer counts
		out[a.PID] = DeviceProcess{Kernels: a.Kernels, Preemptions: a.Preemptions, Slice: time.Duration(a.SliceNS)}
	}
	return out, nil
}

// Record implements Device.
func (d virtualDevice) Record(_ context.Context, w Window) ([]Segment, []Wait, error) {
	spans, err := d.client.Timeline(model.Time(w.From), model.Time(w.To))
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
	records, err := d.client.Waits(model.Time(w.From), model.Time(w.To))
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
	return cut(segs, w), waits, nil
}

// startDevice starts the virtual GPU and gives it its fault.
func (r *rig) startDevice(ctx context.Context, fault string) error {
	socket := r.deviceSocket()
	// A real device does not wait for a CPU: all threads of this one go first.
	var s *service
	_, err := hurried(func() (err error) {
		s, err = r.startService("vgpu", "--platform", r.platform, "--socket", socket, "--devices", "1")
		return err
	})
	if err != nil {
		return err
	}
	if err := r.until(ctx, s, func() error { return r.dialDevice(socket) }); err != nil {
		return err
	}
	if fault == "" || fault == FaultShimInert {
		return nil
	}
	if err := r.device.(virtualDevice).client.SetFault(fault); err != nil {
		return fmt.Errorf("set fault: %w", err)
	}
	return nil
}

// deviceSocket is the virtual GPU's.
func (r *rig) deviceSocket() string {
	if r.platform == PlatformAMD {
		return filepath.Join(r.dir, control.VirtualKFDSocket)
	}
	return filepath.Join(r.dir, control.VirtualSocket)
}

func (r *rig) dialDevice(socket string) error {
	if r.platform == PlatformAMD {
		socket += vamd.WatchSuffix
	}
	client, err := vdevice.Dial(socket)
	if err != nil {
		return err
	}
	r.device = virtualDevice{client}
	r.cleanup = append(r.cleanup, func() { _ = client.Close() })
	return nil
}
