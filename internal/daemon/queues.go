// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"errors"
	"sync"
	"time"

	"xsched/internal/control"
	"xsched/internal/loop"
	"xsched/internal/model"
)

// queuesTime bounds the wait for a device that may hang.
const queuesTime = 2 * time.Second

// queries asks the hardware about the queues of programs.
type queries struct {
	access *access

	mu   sync.Mutex
	open map[model.SessionID]*question // in progress
}

// question is a hardware query of a session.
type question struct {
	answered chan struct{}
	queues   []control.HardwareQueue
	err      error
}

// ask joins the session's query in progress or starts one. A hung device thus has one query at
// most, and the next suspension waits for no more than that.
func (q *queries) ask(session model.SessionID, pid int) *question {
	q.mu.Lock()
	defer q.mu.Unlock()
	if one := q.open[session]; one != nil {
		return one
	}
	one := &question{answered: make(chan struct{})}
	q.open[session] = one
	go func() {
		one.queues, one.err = q.hardwareQueues(context.Background(), pid) // independent of the first caller's context
		q.mu.Lock()
		delete(q.open, session)
		q.mu.Unlock()
		close(one.answered)
	}()
	return one
}

// Queues implements control.Control: it queries a program's hardware.
func (q *queries) Queues(ctx context.Context, c control.Caller, r control.ProcessRequest) (control.HardwareQueues, error) {
	s, err := q.access.find(ctx, c, r.PID)
	if err != nil {
		return control.HardwareQueues{}, err
	}
	r.PID = shownPID(c, s.Identity)
	out := control.HardwareQueues{PID: r.PID, Queues: []control.HardwareQueue{}}
	ctx, cancel := context.WithTimeout(ctx, queuesTime)
	defer cancel()
	one := q.ask(s.ID, s.PID)
	select {
	case <-one.answered:
	case <-ctx.Done():
		return out, control.Errorf(control.ErrUnavailable, "", "list queues of process %d: the device does not answer", r.PID)
	}
	switch {
	case errors.Is(one.err, loop.ErrUnknownPID):
		return out, control.Errorf(control.ErrNotFound, "it may have ended", "process %d is not managed", r.PID)
	case one.err != nil:
		return out, control.Errorf(control.ErrUnavailable, "", "list queues of process %d: %v", r.PID, one.err)
	}
	out.Queues = append(out.Queues, one.queues...)
	return out, nil
}

func (q *queries) hardwareQueues(ctx context.Context, pid int) ([]control.HardwareQueue, error) {
	all, err := q.access.server.HardwareQueues(ctx, pid)
	var out []control.HardwareQueue
	for _, q := range all {
		out = append(out, control.HardwareQueue{
			Driver: q.Driver, Device: q.Device.String(), Kind: q.Kind, ID: q.ID, Stopped: q.Stopped, Details: q.Details,
		})
	}
	return out, err
}
