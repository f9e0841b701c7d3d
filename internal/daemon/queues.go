// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"errors"
	"time"

	"xsched/internal/hub"
	"xsched/internal/model"
)

// HardwareQueues is what the hardware schedules of a program.
type HardwareQueues struct {
	PID    int             `json:"pid"`
	Queues []HardwareQueue `json:"queues"`
}

// HardwareQueue is a queue of AMD's driver, or a channel or a group of channels of NVIDIA's.
type HardwareQueue struct {
	Device string `json:"device"` // PCI address
	// Kind: compute, copy, or group (of channels).
	Kind    string `json:"kind"`
	Stopped bool   `json:"stopped"` // by the daemon, where it does that itself

	AMD    *AMDQueue      `json:"amd,omitempty"`
	NVIDIA *NVIDIAChannel `json:"nvidia,omitempty"`
}

// AMDQueue is a queue as its program announced it.
type AMDQueue struct {
	ID       uint32 `json:"id"` // as the driver numbers it
	GPUID    uint32 `json:"gpu_id"`
	Ring     uint64 `json:"ring"`
	Bytes    uint32 `json:"bytes"`
	Priority uint32 `json:"priority"`
	Late     bool   `json:"late"` // made while the others were paused, and paused too
}

// NVIDIAChannel is an object of NVIDIA's resource manager.
type NVIDIAChannel struct {
	Client  uint32 `json:"client"`
	Handle  uint32 `json:"handle"`
	Group   uint32 `json:"group"` // 0: it is one, or in none
	Class   uint32 `json:"class"`
	SliceUS int64  `json:"slice_us"` // of a group, in force; 0: not known
}

// queuesTime bounds the wait for an answer: a device may give none.
const queuesTime = 2 * time.Second

// question is one that was put to the hardware of a session.
type question struct {
	answered chan struct{}
	queues   []HardwareQueue
	err      error
}

// ask joins the question that is under way for a session, or puts one: on a device that hangs there is
// one, however many ask, and the next stop of the program comes after no more than that.
func (d *daemon) ask(session model.SessionID, pid int) *question {
	d.mu.Lock()
	defer d.mu.Unlock()
	if q := d.questions[session]; q != nil {
		return q
	}
	q := &question{answered: make(chan struct{})}
	d.questions[session] = q
	go func() {
		q.queues, q.err = d.hardwareQueues(context.Background(), pid) // for whoever waits, not for the first
		d.mu.Lock()
		delete(d.questions, session)
		d.mu.Unlock()
		close(q.answered)
	}()
	return q
}

// Queues asks the hardware of a program.
func (d *daemon) Queues(ctx context.Context, c Caller, r ProcessRequest) (HardwareQueues, error) {
	out := HardwareQueues{PID: r.PID, Queues: []HardwareQueue{}}
	s, err := d.find(ctx, c, r.PID)
	if err != nil {
		return out, err
	}
	ctx, cancel := context.WithTimeout(ctx, queuesTime)
	defer cancel()
	q := d.ask(s.ID, r.PID)
	select {
	case <-q.answered:
	case <-ctx.Done():
		return out, fail(ErrUnavailable, "", "list queues of process %d: the device does not answer", r.PID)
	}
	switch {
	case errors.Is(q.err, hub.ErrUnknownPID):
		return out, fail(ErrNotFound, "it may have ended", "process %d is not known to the daemon", r.PID)
	case q.err != nil:
		return out, fail(ErrUnavailable, "", "list queues of process %d: %v", r.PID, q.err)
	}
	out.Queues = append(out.Queues, q.queues...)
	return out, nil
}

func (d *daemon) hardwareQueues(ctx context.Context, pid int) ([]HardwareQueue, error) {
	all, err := d.hub.HardwareQueues(ctx, pid)
	var out []HardwareQueue
	for _, q := range all {
		hq := HardwareQueue{Device: q.Device.String(), Kind: q.Kind, Stopped: q.Stopped}
		if q.Class != 0 {
			hq.NVIDIA = &NVIDIAChannel{Client: q.Client, Handle: q.Handle, Group: q.Group, Class: q.Class, SliceUS: q.SliceUS}
		} else {
			hq.AMD = &AMDQueue{ID: q.ID, GPUID: q.GPUID, Ring: q.Ring, Bytes: q.Bytes, Priority: q.Priority, Late: q.Late}
		}
		out = append(out, hq)
	}
	return out, err
}
