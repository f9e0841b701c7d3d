// SPDX-License-Identifier: Apache-2.0

package nvidia

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"xsched/internal/driver"
	"xsched/internal/driver/nvidia/abi"
	"xsched/internal/model"
)

// One request stops channels of several processes on a GPU. Its fixed cost is 0.4 ms on an H200, and a
// further process adds 0.08 ms. The request travels on the file of one process, the carrier, and names the
// clients of the others. RM does not check that they belong to that file or to anybody. So each client
// is probed on its own file right before the request, by its own worker, and its file stays open until
// the reply: nobody else can have its number meanwhile, unless its process frees the client in that very
// moment. A probe after the reply notices that, and the request is undone for this client.

// errApart asks a process to make its own request.
var errApart = errors.New("not in the shared request")

const (
	apartMin = time.Second
	apartMax = 10 * time.Minute
)

// pause is how long a process stays out of requests on another one's file.
type pause struct {
	until  time.Time
	length time.Duration
}

// part is one process's share of a request.
type part struct {
	objects *Objects
	gpu     model.DeviceID
	level   model.Level
	units   []partUnit
	size    int // channels

	carrier *part // set by request: on whose file it travelled
	met     atomic.Bool
}

type partUnit struct {
	unit
	channels []*object
}

// together makes a request shared with other processes, if the worker has a seat and channels need
// nothing else. Whatever it leaves undone, stopChannels does.
func (s *Objects) together(ctx context.Context, us []unit, gpu model.DeviceID, level model.Level) {
	seat := driver.SeatOf(ctx)
	if seat == nil {
		return
	}
	defer seat.Leave()
	p := s.part(us, gpu, level)
	if p == nil || !p.hold() {
		return
	}
	defer p.release()
	start := time.Now()
	if p.lost(ctx, true) {
		return
	}
	shared, err := seat.Join(p, func(parts []any) []error { return request(ctx, parts) })
	if !shared || errors.Is(err, errApart) {
		return
	}
	if err == nil && p.strayed(ctx) {
		return
	}
	if driver.Late(err) {
		p.meet(ctx)
	}
	for _, u := range p.units {
		switch {
		case err == nil:
			s.reached(u.channels, level)
			s.counted(level, time.Since(start))
		case driver.Late(err):
			s.unsure(u.channels)
		case level != 0:
			s.twice(u.channels)
		}
	}
	if err != nil {
		s.metrics.Split.Add(1)
	}
}

// strayed reports that a client was lost during the request, which may have stopped channels of another
// process: it undoes that.
func (p *part) strayed(ctx context.Context) bool {
	if p.carrier == p && len(p.units) == 1 || !p.lost(ctx, false) {
		return false // the client of a request in progress can't be freed
	}
	if p.level != 0 && p.carrier.send(ctx, 0, p.pairs()) != nil {
		for _, u := range p.units {
			p.objects.twice(u.channels)
		}
	}
	return true
}

// meet looks for lost clients when both have come: the reply, and the worker's decision not to wait for
// it.
func (p *part) meet(ctx context.Context) {
	if p.met.Swap(true) {
		p.strayed(ctx)
	}
}

// part returns the channels to stop or to enable once; nil: none, or they need more than that.
func (s *Objects) part(us []unit, gpu model.DeviceID, level model.Level) *part {
	p := &part{objects: s, gpu: gpu, level: level}
	for _, u := range us {
		steps := s.plan(u, level)
		if len(steps.fully)+len(steps.parked) > 0 || level != 0 && len(steps.once) > 0 || s.anyTwice(steps.once) {
			return nil
		}
		if list := append(steps.once, steps.stop...); len(list) > 0 {
			p.units = append(p.units, partUnit{u, list})
			p.size += len(list)
		}
	}
	if p.size == 0 || p.size > abi.NV2080_CTRL_FIFO_DISABLE_CHANNELS_MAX_ENTRIES {
		return nil
	}
	return p
}

func (s *Objects) anyTwice(list []*object) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.ContainsFunc(list, func(o *object) bool { return o.twice })
}

// request carries out parts in one call on the first one's file and returns an error for each.
func request(ctx context.Context, parts []any) []error {
	errs := make([]error, len(parts))
	lead := parts[0].(*part)
	in := []int{0} // parts in the request
	size := lead.size
	for i := 1; i < len(parts); i++ {
		p, ok := parts[i].(*part)
		// The worker of p may stop waiting for the reply: keep its file open.
		if !ok || p.objects.driver != lead.objects.driver || p.gpu != lead.gpu || p.level != lead.level ||
			size+p.size > abi.NV2080_CTRL_FIFO_DISABLE_CHANNELS_MAX_ENTRIES || lead.objects.parted(p.objects.process) || !p.hold() {
			errs[i] = errApart
			continue
		}
		defer p.release()
		in, size = append(in, i), size+p.size
	}
	if len(in) == 1 {
		errs[0] = errApart
		return errs
	}
	var pairs []entry
	for _, i := range in {
		p := parts[i].(*part)
		p.carrier = lead
		pairs = append(pairs, p.pairs()...)
	}
	err := lead.send(ctx, lead.level, pairs)
	for _, i := range in[1:] {
		lead.objects.setParted(parts[i].(*part).objects.process, err != nil)
	}
	if err == nil {
		for _, i := range in[1:] {
			parts[i].(*part).meet(ctx)
		}
		lead.objects.metrics.Shared.Add(uint64(len(in) - 1))
		return errs
	}
	for _, i := range in {
		errs[i] = err
	}
	return errs
}

// send makes a request on the part's own file.
func (p *part) send(ctx context.Context, level model.Level, pairs []entry) error {
	u := p.units[0]
	params := disablePairs(level != 0, level == model.LevelDeactivate, pairs)
	return p.objects.driver.control(ctx, u.client.file, u.client.handle, u.subdevice, abi.NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS, params)
}

func (p *part) pairs() (out []entry) {
	for _, u := range p.units {
		for _, o := range u.channels {
			out = append(out, entry{u.client.handle, o.handle})
		}
	}
	return out
}

// hold keeps the files of the part open; false: one is closed.
func (p *part) hold() bool {
	for i, u := range p.units {
		if !u.client.file.hold() {
			for _, held := range p.units[:i] {
				held.client.file.release()
			}
			return false
		}
	}
	return true
}

func (p *part) release() {
	for _, u := range p.units {
		u.client.file.release()
	}
}

// lost reports that a client no longer belongs to its file. Without an answer it counts as lost if
// doubt is set.
func (p *part) lost(ctx context.Context, doubt bool) bool {
	for _, u := range p.units {
		gpu, err := p.objects.driver.probeObject(ctx, u.client.file, u.client.handle, u.subdevice, abi.NV20_SUBDEVICE_0)
		st, answered := statusOf(err)
		switch {
		case err == nil && gpu == p.gpu:
		case err != nil && (!answered || st.transient()) && !doubt:
		default:
			return true
		}
	}
	return false
}

// parted reports that another process stays out of requests on this one's file for now.
func (s *Objects) parted(process int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return time.Now().Before(s.apart[process].until)
}

// setParted keeps another process out of requests on this one's file after a failure, each time for
// longer. A success ends that.
func (s *Objects) setParted(process int, failed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !failed {
		delete(s.apart, process)
		return
	}
	if s.apart == nil {
		s.apart = map[int]pause{}
	}
	now := time.Now()
	for other, p := range s.apart {
		if other != process && now.Sub(p.until) > apartMax {
			delete(s.apart, other)
		}
	}
	length := min(max(2*s.apart[process].length, apartMin), apartMax)
	s.apart[process] = pause{now.Add(length), length}
}
