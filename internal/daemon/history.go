// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"time"

	"xsched/internal/control"
)

// History implements control.Control.
func (d *Daemon) History(_ context.Context, _ control.Caller, r control.HistoryRequest) (control.History, error) {
	if r.Seconds < 0 || r.Seconds > control.HistorySeconds {
		return control.History{}, control.Errorf(control.ErrInvalid, "use 1 to 3600", "a history of %d seconds is out of range", r.Seconds)
	}
	if r.Seconds == 0 {
		r.Seconds = control.SpanSeconds
	}
	now := time.Now()
	return control.History{
		FromNS: now.Add(-time.Duration(r.Seconds) * time.Second).UnixNano(), ToNS: now.UnixNano(), StepNS: int64(time.Second),
		Devices: []control.DeviceHistory{},
	}, nil
}

// Journal implements control.Control.
func (d *Daemon) Journal(_ context.Context, _ control.Caller, r control.JournalRequest) (control.Journal, error) {
	if r.Max < 0 || r.Max > control.JournalMax {
		return control.Journal{}, control.Errorf(control.ErrInvalid, "use 1 to 2048", "%d entries are out of range", r.Max)
	}
	return control.Journal{Entries: []control.JournalEntry{}, Next: r.Since}, nil
}
