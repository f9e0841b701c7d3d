// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"errors"
	"time"

	"xsched/internal/control"
	"xsched/internal/loop"
	"xsched/internal/model"
)

// queuesTime bounds the wait for a device that may hang.
const queuesTime = 2 * time.Second

// question is a hardware query of a session.
type question struct {
	answered chan struct{}
	queues   []control.HardwareQueue
	err      error
}

// ask joins the session's query in progress or starts one. A hung device thus has one query at
// most, and the next suspension waits for no more than that.
func (d *Daemon) ask(session model.SessionID, pid int) *question {
	d.mu.Lock()
	defer d.mu.Unlock()
	if q := d.questions[session]; q != nil {
		return q
	}
	q := &question{answered: make(chan struct{})}
	d.questions[session] = q
	go func() {
		q.queues, q.err = d.hardwareQueues(context.Background(), pid) // independent of the first caller's context
		d.mu.Lock()
		delete(d.questions, session)
		d.mu.Unlock()
		close(q.answered)
	}()
	return q
}

// Queues implements control.Control: it queries a program's hardware.
func (d *Daemon) Queues(ctx context.Context, c control.Caller, r control.ProcessRequest) (control.HardwareQueues, error) {
	s, err := d.access.find(ctx, c, r.PID)
	if err != nil {
		return control.HardwareQueues{}, err
	}
	r.PID = shownPID(c, s.Identity)
	out := control.HardwareQueues{PID: r.PID, Queues: []control.HardwareQueue{}}
	ctx, cancel := context.WithTimeout(ctx, queuesTime)
	defer cancel()
	q := d.ask(s.ID, s.PID)
	select {
	case <-q.answered:
	case <-ctx.Done():
		return out, control.Errorf(control.ErrUnavailable, "", "list queues of process %d: the device does not answer", r.PID)
	}
	switch {
	case errors.Is(q.err, loop.ErrUnknownPID):
		return out, control.Errorf(control.ErrNotFound, "it may have ended", "process %d is not managed", r.PID)
	case q.err != nil:
		return out, control.Errorf(control.ErrUnavailable, "", "list queues of process %d: %v", r.PID, q.err)
	}
	out.Queues = append(out.Queues, q.queues...)
	return out, nil
}

func (d *Daemon) hardwareQueues(ctx context.Context, pid int) ([]control.HardwareQueue, error) {
	all, err := d.server.HardwareQueues(ctx, pid)
	var out []control.HardwareQueue
	for _, q := range all {
		out = append(out, control.HardwareQueue{
			Driver: q.Driver, Device: q.Device.String(), Kind: q.Kind, ID: q.ID, Stopped: q.Stopped, Details: q.Details,
		})
	}
	return out, err
}
