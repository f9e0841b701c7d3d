// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"errors"
	"fmt"

	"xsched/internal/clock"
	"xsched/internal/control"
	"xsched/internal/identity"
	"xsched/internal/journal"
	"xsched/internal/loop"
	"xsched/internal/model"
	"xsched/internal/residency"
	"xsched/internal/wire"
)

// fixedNames are the reasons why memory is not movable, as control.Memory.Fixed has them.
var fixedNames = [wire.MemoryFixed]string{
	wire.FixedNotAsked: "not asked", wire.FixedSmall: "small", wire.FixedPool: "pool", wire.FixedArray: "array",
	wire.FixedManaged: "managed", wire.FixedExported: "exported", wire.FixedRefused: "refused",
}

// notMoved says why memory stayed, with the remedy.
var notMoved = map[residency.Result]string{
	residency.Done:      "the program did not carry out the order; see its log (XSCHED_LOG)",
	residency.Busy:      "its submitted work did not end within 2 s; try again, or suspend what it waits for",
	residency.Capturing: "it is capturing a graph; try again when it has ended",
	residency.HostFull:  "the host memory for moves does not suffice; raise --host-memory of the daemon, or the memory limit of the program's container",
	residency.NoRoom:    "the GPU has no room; evict another program",
	residency.Failed:    "the driver refused a step; see the program's log (XSCHED_LOG) and the kernel's",
	residency.Nothing:   "it has no movable memory; start it with `xsched run --movable`",
	residency.Refused:   "it submits work that the library does not see, so it can't move; see `xsched doctor -- COMMAND`",
}

// memory describes the memory of a program on one GPU.
func memory(m *loop.MemoryView, quota model.Bytes, now model.Time) control.Memory {
	out := control.Memory{
		Device: m.Device.String(), UsedBytes: int64(m.Used), QuotaBytes: int64(quota), Refused: m.Refused,
		MovableBytes: int64(m.Movable), AwayBytes: int64(m.Away), PinnedBytes: int64(m.Pinned), Residency: control.Residencies()[m.Residency],
		Evicted: m.Evicted, Waits: m.Waits, MovesOut: m.Out, MovesBack: m.Back, BytesOut: int64(m.BytesOut), BytesBack: int64(m.BytesBack),
	}
	if m.Failed {
		out.EvictFailed = notMoved[m.Why]
	}
	for reason, bytes := range m.Fixed {
		if name := fixedNames[reason]; bytes > 0 && name != "" {
			if out.Fixed == nil {
				out.Fixed = map[string]int64{}
			}
			out.Fixed[name] = int64(bytes)
		}
	}
	if m.MoveBegun != 0 {
		move := control.Move{Bytes: int64(m.MoveBytes), MovedBytes: int64(m.Moved), Active: m.MoveEnded < m.MoveBegun}
		end := m.MoveEnded
		if move.Active {
			end = now
		}
		move.DurationNS = max(0, end.Sub(m.MoveBegun).Nanoseconds())
		out.Move = &move
	}
	return out
}

// Evict implements control.Control.
func (p *processes) Evict(ctx context.Context, c control.Caller, r control.EvictRequest) (control.MemoryReply, error) {
	s, err := p.access.find(ctx, c, r.PID)
	if err != nil {
		return control.MemoryReply{}, err
	}
	pid, gpu, bytes := shownPID(c, s.Identity), model.DeviceID(0), model.Bytes(r.Bytes)
	switch {
	case r.Bytes < 0:
		return control.MemoryReply{}, control.Errorf(control.ErrInvalid, "use a positive number, or 0 for all", "%d bytes can't be moved", r.Bytes)
	case r.Bytes == 0:
		bytes = residency.All
	}
	if r.Device != "" {
		if gpu, err = model.ParseDeviceID(r.Device); err != nil {
			return control.MemoryReply{}, control.Errorf(control.ErrInvalid, "use an address as in `xsched list`", "%q is not the PCI address of a GPU", r.Device)
		}
	}
	if err := canLeave(&s, pid, gpu); err != nil {
		return control.MemoryReply{}, err
	}
	ctx, cancel := context.WithTimeout(loop.WithUser(ctx, c.User), answerTime)
	defer cancel()
	return p.moved(ctx, c, &s, p.access.loop.Evict(ctx, s.PID, gpu, bytes), "memory of process %d leaves the GPU")
}

// canLeave refuses a program without memory that could leave.
func canLeave(s *loop.ClientView, pid int, gpu model.DeviceID) error {
	var used, movable model.Bytes
	known := false
	for i := range s.Memory {
		if m := &s.Memory[i]; gpu == 0 || m.Device == gpu {
			used, movable, known = used+m.Used, movable+m.Movable, true
		}
	}
	switch {
	case s.Attached:
		return control.Errorf(control.ErrNotSupported, "start it with `xsched run --movable`", "process %d was attached, so its memory can't move", pid)
	case !known && gpu != 0:
		return control.Errorf(control.ErrNotFound, "see `xsched list`", "process %d has no memory on %v", pid, gpu)
	case movable == 0:
		return control.Errorf(control.ErrNotSupported, "start it with `xsched run --movable`", "process %d has no movable memory (%s in use)", pid, used.Short())
	}
	return nil
}

// Restore implements control.Control.
func (p *processes) Restore(ctx context.Context, c control.Caller, r control.ProcessRequest) (control.MemoryReply, error) {
	s, err := p.access.find(ctx, c, r.PID)
	if err != nil {
		return control.MemoryReply{}, err
	}
	ctx, cancel := context.WithTimeout(loop.WithUser(ctx, c.User), answerTime)
	defer cancel()
	return p.moved(ctx, c, &s, p.access.loop.Restore(ctx, s.PID), "memory of process %d returns to the GPU as soon as there is room")
}

// moved answers an order about the memory of a process.
func (p *processes) moved(ctx context.Context, c control.Caller, s *loop.ClientView, err error, message string) (control.MemoryReply, error) {
	pid := shownPID(c, s.Identity)
	switch {
	case errors.Is(err, loop.ErrUnknownPID):
		return control.MemoryReply{}, control.Errorf(control.ErrNotFound, "", "process %d has ended", pid)
	case errors.Is(err, loop.ErrManyMovers):
		return control.MemoryReply{}, control.Errorf(control.ErrNotSupported, "end other programs of the user", "memory of process %d is not scheduled: the user has too many programs with movable memory", pid)
	case err != nil:
		return control.MemoryReply{}, typed(unavailable(err))
	}
	p.keepProcess(ctx, c, s.PID)
	out := control.MemoryReply{PID: pid, Message: fmt.Sprintf(message, pid), Memory: []control.Memory{}}
	for i := range s.Memory {
		out.Memory = append(out.Memory, memory(&s.Memory[i], s.Hint.Memory, clock.Now()))
	}
	return out, nil
}

// Evict implements control.Control.
func (a audited) Evict(ctx context.Context, c control.Caller, r control.EvictRequest) (control.MemoryReply, error) {
	what := "all"
	if r.Bytes != 0 {
		what = model.Bytes(r.Bytes).Short()
	}
	return a.memory(ctx, c, r.PID, changeEvict, r.Device, what, func() (control.MemoryReply, error) { return a.Daemon.Evict(ctx, c, r) })
}

// Restore implements control.Control.
func (a audited) Restore(ctx context.Context, c control.Caller, r control.ProcessRequest) (control.MemoryReply, error) {
	return a.memory(ctx, c, r.PID, changeRestore, "", "", func() (control.MemoryReply, error) { return a.Daemon.Restore(ctx, c, r) })
}

// memory gives an order about the memory of a process and enters it.
func (a audited) memory(ctx context.Context, c control.Caller, pid int, what, device, after string, f func() (control.MemoryReply, error)) (control.MemoryReply, error) {
	before := a.access.known(ctx, c, pid)
	reply, err := f()
	if err != nil {
		a.chronicle.refused(c, what, err)
		return reply, err
	}
	a.chronicle.audit(c, journal.Entry{What: what, Program: a.chronicle.programOf(&before.Identity), Device: device, After: after})
	return reply, nil
}

// hostShare is the part of a control group's limit that moves leave for the program itself.
const hostShare = 16

// hostLimits keeps programs from pinning more than their control groups have left: the kernel would end them.
func (h *chronicle) hostLimits(ctx context.Context, programs []loop.ClientView) {
	limits := map[model.SessionID]model.Bytes{}
	for i := range programs {
		var pinned, movable model.Bytes
		for k := range programs[i].Memory {
			pinned, movable = pinned+programs[i].Memory[k].Pinned, movable+programs[i].Memory[k].Movable
		}
		if movable == 0 {
			continue
		}
		if limit, used, ok := identity.MemoryLimit(programs[i].PID); ok {
			limits[programs[i].ID] = max(1, min(pinned, model.Bytes(used))+model.Bytes(limit-limit/hostShare-used)&^(64<<20-1))
		}
	}
	_ = h.access.loop.SetHostLimits(ctx, limits) // the next sample tries again
}

// moves enters the moves of memory that have ended.
func (h *chronicle) moves(ctx context.Context) {
	all, err := h.access.loop.MemoryMoves(ctx)
	if err != nil {
		return // the next sample has them
	}
	for i := range all {
		m := &all[i]
		e := journal.Entry{
			Kind: control.JournalMove, Program: h.programOf(&m.Who), Hand: m.ByHand, Back: m.Want == residency.WantBack, Device: m.Device.String(), Bytes: int64(m.Bytes), Duration: m.Took,
		}
		if m.For.PID != 0 {
			e.By = h.programOf(&m.For)
		}
		if m.Failed {
			e.Detail = notMoved[m.Result]
		}
		h.journal.Add(m.Who.User, e)
	}
}

// move says what happened to the memory of a program.
func move(e *journal.Entry, program, by string) string {
	amount := model.Bytes(e.Bytes).Short() + " of " + program
	if e.Detail != "" {
		return fmt.Sprintf("%s did not leave %s: %s", amount, e.Device, e.Detail)
	}
	text := amount + " left " + e.Device
	if e.Back {
		text = amount + " returned to " + e.Device
	}
	if text += " in " + duration(e.Duration); e.Duration > 0 {
		text += fmt.Sprintf(" (%.1f GB/s)", float64(e.Bytes)/float64(e.Duration.Nanoseconds()))
	}
	switch {
	case e.Hand:
		return text + " by hand"
	case by != "":
		return text + " for " + by
	}
	return text
}
