// SPDX-License-Identifier: Apache-2.0

package vnvidia

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"xsched/internal/clock"
	"xsched/internal/model"
	gpumodel "xsched/internal/virtual/model"
)

// Options of the device process.
type Options struct {
	Socket  string // path of the SOCK_SEQPACKET socket
	Devices int    // default 2
	Memory  uint64 // of each device; default DefaultMemory
	Logger  *slog.Logger
	// Ready is called once clients can connect; may be nil.
	Ready func()
}

// MaxDevices bounds the devices of one process; their PCI buses are numbered from 1.
const MaxDevices = 64

// server is the device process. One thread handles everything that depends on time.
type server struct {
	log      *slog.Logger
	epoll    int
	listener int
	socket   string
	timer    int
	wake     int
	armed    model.Time
	woken    model.Time

	gpus      []*gpumodel.GPU
	timelines []*gpumodel.Timeline
	faults    *gpumodel.Faults
	rm        *resourceManager

	conns     map[int]*conn
	doorbells map[int]*area
	accounts  accounts
	dirty     []*area
	pending   []submission
	late      lateness

	calls chan func() // from query connections and movers
	ended chan struct{}
	quit  bool
}

// Serve runs the device until ctx ends or a client asks it to quit.
func Serve(ctx context.Context, o Options) error {
	if o.Devices == 0 {
		o.Devices = 2
	}
	if o.Devices < 1 || o.Devices > MaxDevices {
		return fmt.Errorf("create %d devices: not between 1 and %d", o.Devices, MaxDevices)
	}
	if o.Memory == 0 {
		o.Memory = DefaultMemory
	}
	if o.Memory > MaxMemory {
		return fmt.Errorf("create devices with %v of memory: not above %v", model.Bytes(o.Memory), model.Bytes(MaxMemory))
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	s := &server{
		log: o.Logger, socket: o.Socket,
		epoll: -1, listener: -1, timer: -1, wake: -1,
		faults: new(noFaults()),
		conns:  map[int]*conn{}, doorbells: map[int]*area{}, accounts: newAccounts(),
		calls: make(chan func(), 64), ended: make(chan struct{}),
	}
	defer s.close(o.Socket)
	for i := range o.Devices {
		s.timelines = append(s.timelines, gpumodel.NewTimeline(i))
		s.gpus = append(s.gpus, gpumodel.NewGPU(s.now(), gpumodel.RemoteCosts(), s.timelines[i], s.faults))
	}
	s.rm = newResourceManager(s.gpus, s.faults)
	s.rm.newArea, s.rm.capacity = s.mapArea, o.Memory
	if err := s.listen(o.Socket); err != nil {
		return err
	}
	files := gpuFiles{root: filepath.Dir(o.Socket)}
	defer files.remove()
	if err := files.write(o.Devices); err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { s.call(func() { s.quit = true }) })()
	raiseFileLimit()
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread and its priority end together
		s.log.Info("virtual gpu", "socket", o.Socket, "devices", o.Devices, "scheduling", hurry())
		if o.Ready != nil {
			o.Ready()
		}
		err := s.loop()
		close(s.ended)
		done <- err
	}()
	return <-done
}

func (s *server) now() model.Time { return clock.Now() }

// call runs f on the device thread, asynchronously.
func (s *server) call(f func()) {
	select {
	case s.calls <- f:
	case <-s.ended:
		return
	}
	one := [8]byte{1}
	_, _ = unix.Write(s.wake, one[:])
}

func (s *server) loop() error {
	events := make([]unix.EpollEvent, 128)
	var sockets []int
	for !s.quit {
		s.arm()
		n, err := unix.EpollWait(s.epoll, events, -1)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("wait for events: %w", err)
		}
		now := s.now()
		s.late.note(now, s.armed)
		s.woken = now
		sockets = sockets[:0]
		for _, e := range events[:max(n, 0)] {
			fd := int(e.Fd)
			switch a := s.doorbells[fd]; {
			case a != nil:
				drain(fd)
				s.pending = a.collect(now, s.pending)
			case fd == s.timer, fd == s.wake:
				drain(fd)
			default:
				sockets = append(sockets, fd)
			}
		}
		s.advance(now)
		s.flush()
		for _, fd := range sockets {
			if fd == s.listener {
				s.accept()
			} else if c := s.conns[fd]; c != nil {
				s.receive(c)
			}
		}
		for more := true; more; {
			select {
			case f := <-s.calls:
				f()
			default:
				more = false
			}
		}
		s.flush()
	}
	return nil
}

// advance submits collected work at its submission time and simulates up to now.
func (s *server) advance(now model.Time) {
	if len(s.pending) > 1 {
		slices.SortStableFunc(s.pending, func(a, b submission) int { return cmp.Compare(a.at, b.at) })
	}
	kept := s.pending[:0]
	for i := range s.pending {
		p := s.pending[i]
		switch {
		case p.area.closed:
		case s.faults.Hung[p.area.device]:
			kept = append(kept, p) // until the GPU runs again
		default:
			p.area.gpu.Advance(min(p.at, now))
			p.area.gpu.Submit(p.ch.channel, p.work)
		}
	}
	clear(s.pending[len(kept):])
	s.pending = kept
	s.advanceAll(now)
}

// valuePoll is how often the device reads a value that a channel waits for: a quarter of the switch that
// follows.
const valuePoll = 50 * time.Microsecond

// advanceAll simulates every GPU that does not hang up to now.
func (s *server) advanceAll(now model.Time) {
	for i, g := range s.gpus {
		if !s.faults.Hung[i] {
			g.Advance(now)
			g.Stored()
		}
	}
}

// flush publishes the fences of completed work.
func (s *server) flush() {
	for i, a := range s.dirty {
		a.flush()
		s.dirty[i] = nil
	}
	s.dirty = s.dirty[:0]
}

// shortestSleep bounds the wake-up rate of the device thread, which may have real-time priority,
// whatever its clients do.
const shortestSleep = 20 * time.Microsecond

// arm sets the timer to the next internal event.
func (s *server) arm() {
	next := model.Never
	for i, g := range s.gpus {
		if !s.faults.Hung[i] {
			next = min(next, g.NextEvent())
			if g.WaitsForValue() {
				next = min(next, s.woken.Add(valuePoll))
			}
		}
	}
	next = max(next, s.woken.Add(shortestSleep))
	if next == s.armed {
		return
	}
	s.armed = next
	var spec unix.ItimerSpec
	if next != model.Never {
		spec.Value = unix.NsecToTimespec(max(1, int64(next)))
	}
	_ = unix.TimerfdSettime(s.timer, unix.TFD_TIMER_ABSTIME, &spec, nil)
}

func drain(fd int) {
	var b [8]byte
	_, _ = unix.Read(fd, b[:])
}

// maxMemfdName is the kernel's limit.
const maxMemfdName = 249

// mapArea creates the shared memory of a context.
func (s *server) mapArea(f *rmFile, o *object, lanes []*gpumodel.Group) (*area, error) {
	gpu := model.MakeDeviceID(0, uint32(o.device)+1, 0, 0)
	name := fmt.Sprintf("vgpu:%d:%v:%s", os.Getpid(), gpu, s.socket)
	a, err := newArea(name[:min(len(name), maxMemfdName)], int64(s.rm.capacity+hostBytes), s.gpus[o.device], f.account, o.group, lanes)
	if err != nil {
		s.log.Warn("map context", "pid", f.account.PID, "err", err)
		return nil, err
	}
	a.device = o.device
	f.numbers++
	a.number, a.siblings = f.numbers, f.areas
	f.areas[a.number] = a
	a.changed = func(a *area) { s.dirty = append(s.dirty, a) }
	a.finished = func(ch *areaChannel) {
		s.call(func() {
			// The notification may belong to an earlier copy than the current one.
			if !a.closed && ch.moved.Load() {
				a.gpu.Advance(s.now())
				a.gpu.CopyFinished(ch.channel)
			}
		})
	}
	a.forget = func() { delete(s.doorbells, a.doorbell) }
	if err := s.watch(a.doorbell); err != nil {
		a.close()
		return nil, err
	}
	s.doorbells[a.doorbell] = a
	a.askBeforeCopies(s.faults)
	return a, nil
}

func (s *server) watch(fd int) error {
	event := unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(fd)}
	if err := unix.EpollCtl(s.epoll, unix.EPOLL_CTL_ADD, fd, &event); err != nil {
		return fmt.Errorf("watch descriptor: %w", err)
	}
	return nil
}

func (s *server) close(socket string) {
	for _, c := range s.conns {
		s.hangUp(c)
	}
	if s.listener >= 0 {
		_ = os.Remove(socket)
	}
	for _, fd := range []int{s.listener, s.timer, s.wake, s.epoll} {
		if fd >= 0 {
			_ = unix.Close(fd)
		}
	}
}

// lateness measures the wake-up latency of the device thread: the machine's noise that clients see.
type lateness struct {
	count, sumNS, maxNS, over100us uint64
}

func (l *lateness) note(now, armed model.Time) {
	if armed == 0 || armed == model.Never || now < armed {
		return
	}
	d := uint64(now - armed)
	l.count++
	l.sumNS += d
	l.maxNS = max(l.maxNS, d)
	if d > 100_000 {
		l.over100us++
	}
}
