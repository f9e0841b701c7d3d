// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"log/slog"
	"sync"

	"xsched/internal/control"
	"xsched/internal/driver"
	"xsched/internal/health"
	"xsched/internal/model"
	"xsched/internal/sensor"
)

// sensors are the values of the GPUs that drivers can read.
type sensors struct {
	log    *slog.Logger
	health *health.Monitor
	helper func() (path string, env []string, err error) // nil: nothing is read
	fault  func(sensor.Event)

	mu      sync.Mutex
	readers []*sensor.Reader
}

// watch reads the values of a driver's GPUs until ctx ends.
func (s *sensors) watch(ctx context.Context, i driver.Instance) {
	d, ok := i.(driver.Sensed)
	if !ok || s.helper == nil || ctx.Err() != nil {
		return
	}
	r := &sensor.Reader{
		Command: s.helper, Args: d.SensorArgs(), GPUs: i.Devices, Log: s.log, Part: s.health.Add(sensorsPart, sensorsLimit, false),
		Notify: func(e sensor.Event) {
			s.log.Warn("GPU", "device", e.GPU.String(), "event", e.Text, "count", e.Count)
			s.fault(e)
		},
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.readers = append(s.readers, r)
	go r.Run(ctx)
}

// of returns the values of a GPU; nil: nothing is known.
func (s *sensors) of(id model.DeviceID) *control.Sensors {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.readers {
		if v := r.Of(id); v != nil {
			return v
		}
	}
	return nil
}
