// SPDX-License-Identifier: Apache-2.0

// Package sensor keeps the values of GPUs that a helper program reads from a vendor's library or the
// kernel. The helper is a process of its own, because such a read may hang for ever or crash. A helper
// that is silent is killed; its values are unknown from then on.
package sensor

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"time"

	"xsched/internal/control"
	"xsched/internal/health"
	"xsched/internal/model"
)

// The helper writes a line each second.
const (
	// startTime is for the first line: a driver that nobody used may first have to initialise each GPU.
	startTime = time.Minute
	// silence is for each further line: a busy host may delay a few. Older values look dead.
	silence = 5 * time.Second
	// The delay before a restart grows from one to the other: what failed for minutes takes a person.
	firstDelay = time.Second
	mostDelay  = 5 * time.Minute
	// lineBytes bounds a line: a GPU has 500 bytes.
	lineBytes = 1 << 20
	// again is the least time between two events of a GPU with the same Xid, or of a full memory: any user can
	// cause one each second, and must not displace what else the audit file has.
	again = 10 * time.Minute
	// mostGPUs bounds those that the helper names.
	mostGPUs = 256
	// mostXids bounds the codes of a GPU; drivers have fewer than 200.
	mostXids = 256
)

// An allocation may fail when less than 1/lowShare of the memory is free: 3 %. Frameworks that take memory in
// advance leave more (vLLM 8 %, JAX 25 %), and on a GPU of 16 GiB it is one more program's context. The warning ends
// at twice that, so that a program that allocates and frees at the limit does not repeat it.
const lowShare = 32

// Event is something that an operator should know about a GPU.
type Event struct {
	GPU   model.DeviceID
	Xid   int // 0: of the memory
	Text  string
	Count uint64
}

// Reader runs the helper for the GPUs of one driver.
type Reader struct {
	// Command returns the helper and its environment, Args are its arguments.
	Command func() (path string, env []string, err error)
	Args    []string
	// GPUs lists those whose values are missing while the helper does not work.
	GPUs func() []model.DeviceID
	// Notify gets events; it must not block.
	Notify func(Event)
	Log    *slog.Logger
	Part   *health.Part

	mu   sync.Mutex
	gpus map[model.DeviceID]*gpu

	limits limits // of tests; zero: the constants
}

type limits struct{ start, silence, first, most, again time.Duration }

// gpu is the last reading of a GPU and what the daemon adds.
type gpu struct {
	control.Sensors
	news map[int]*news // by Xid
	full news          // of MemoryLow
}

// news is what comes with the next event.
type news struct {
	count uint64
	sent  time.Time // of the last event
}

// message is one line of the helper.
type message struct {
	GPUs []struct {
		ID string `json:"id"`
		control.Sensors
	} `json:"gpus"`
	ID     string `json:"id"`
	Xid    int    `json:"xid"`
	Absent string `json:"absent"` // this host has nothing to read
	Error  string `json:"error"`
}

// errAbsent reports that there is nothing to read on this host.
var errAbsent = errors.New("nothing to read")

// Of returns the last values of a GPU; nil: nothing is known about it.
func (r *Reader) Of(id model.DeviceID) *control.Sensors {
	r.mu.Lock()
	defer r.mu.Unlock()
	g := r.gpus[id]
	if g == nil {
		return nil
	}
	s := g.Sensors
	s.Xids = slices.Clone(s.Xids)
	return &s
}

// Run keeps the helper running until ctx ends, or until it says that there is nothing to read.
func (r *Reader) Run(ctx context.Context) {
	if r.limits == (limits{}) {
		r.limits = limits{startTime, silence, firstDelay, mostDelay, again}
	}
	r.Part.End()
	for delay := r.limits.first; ; delay = min(2*delay, r.limits.most) {
		began := time.Now()
		err := r.serve(ctx)
		if ctx.Err() != nil {
			return
		}
		if errors.Is(err, errAbsent) {
			r.Log.Info("no GPU sensors", "helper", r.Args[0], "reason", err)
			return
		}
		if time.Since(began) > r.limits.start+delay { // it worked for a while
			delay = r.limits.first
		}
		r.Log.Warn("GPU sensors are unknown", "helper", r.Args[0], "err", err, "retry", delay)
		select {
		case <-ctx.Done():
			return
		case <-time.After(delay):
		}
	}
}

// serve runs one helper to its end. It returns once the process is gone: one that hangs in the kernel outlives its
// kill, and must not get company.
func (r *Reader) serve(ctx context.Context) error {
	path, env, err := r.Command()
	if err != nil {
		return fmt.Errorf("%w: %w", errAbsent, err)
	}
	in, out, err := os.Pipe()
	if err != nil {
		return err
	}
	defer in.Close()
	cmd := exec.CommandContext(ctx, path, r.Args...)
	cmd.Env, cmd.Stdout = env, out
	exited, err := start(cmd)
	_ = out.Close()
	if errors.Is(err, fs.ErrNotExist) { // an image without the C library, too
		return fmt.Errorf("%w: %w", errAbsent, err)
	}
	if err != nil {
		return err
	}
	stop, lines := make(chan struct{}), make(chan message)
	go read(in, lines, stop)
	err = r.follow(ctx, lines)
	close(stop)
	_ = cmd.Process.Kill()
	if ctx.Err() == nil && !errors.Is(err, errAbsent) {
		r.work(func() { r.lose(err) })
	}
	select {
	case state := <-exited:
		if errors.Is(err, io.EOF) {
			err = fmt.Errorf("the helper ended: %w", failure(state))
		}
	case <-ctx.Done():
	}
	return err
}

// start starts the helper; exited gets its end. The kernel kills it when the thread that started it ends, so that it
// does not outlive the daemon. That thread is kept meanwhile: others end with a goroutine.
func start(cmd *exec.Cmd) (exited <-chan error, err error) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	started, ended := make(chan error), make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			ended <- cmd.Wait()
		}
	}()
	return ended, <-started
}

// failure replaces the success of a helper that should not end.
func failure(state error) error {
	if state == nil {
		return errors.New("exit status 0")
	}
	return state
}

// read passes the lines of the helper on until it ends, or until stop is closed.
func read(in io.Reader, lines chan<- message, stop <-chan struct{}) {
	defer close(lines)
	s := bufio.NewScanner(in)
	s.Buffer(nil, lineBytes)
	for s.Scan() {
		var m message
		if err := json.Unmarshal(s.Bytes(), &m); err != nil {
			m = message{Error: "the helper's line: " + err.Error()}
		}
		select {
		case lines <- m:
		case <-stop:
			return
		}
	}
}

// follow takes over what the helper says, until it is silent for too long, fails or ends.
func (r *Reader) follow(ctx context.Context, lines <-chan message) error {
	limit := time.NewTimer(r.limits.start)
	defer limit.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-limit.C:
			return errors.New("the driver or its library does not answer")
		case m, ok := <-lines:
			switch {
			case !ok:
				return io.EOF
			case m.Absent != "":
				return fmt.Errorf("%w: %s", errAbsent, m.Absent)
			case m.Error != "":
				return errors.New(m.Error)
			}
			limit.Reset(r.limits.silence)
			r.work(func() { r.take(&m) })
		}
	}
}

// work shows that the reader works while f runs.
func (r *Reader) work(f func()) {
	r.Part.Begin()
	defer r.Part.End()
	f()
}

// take replaces the values by those of a line.
func (r *Reader) take(m *message) {
	var events []Event
	r.mu.Lock()
	if m.Xid != 0 {
		r.xid(m)
	} else {
		events = r.replace(m)
	}
	r.mu.Unlock()
	r.notify(events)
}

func (r *Reader) notify(events []Event) {
	for _, e := range events {
		r.Notify(e)
	}
}

// xid counts an error. Preconditions: r.mu is held.
func (r *Reader) xid(m *message) {
	id, err := model.ParseDeviceID(m.ID)
	g := r.gpus[id]
	if err != nil || g == nil || m.Xid < 0 {
		return
	}
	i := slices.IndexFunc(g.Xids, func(x control.Xid) bool { return x.Code == m.Xid })
	if i < 0 {
		if len(g.Xids) >= mostXids {
			return
		}
		i = len(g.Xids)
		g.Xids = append(g.Xids, control.Xid{Code: m.Xid})
	}
	g.Xids[i].Count++
	g.Xids[i].LastNS = time.Now().UnixNano()
	if g.news == nil {
		g.news = map[int]*news{}
	}
	if g.news[m.Xid] == nil {
		g.news[m.Xid] = &news{}
	}
	g.news[m.Xid].count++
}

// replace takes over the values of all GPUs and returns what is new. Preconditions: r.mu is held.
func (r *Reader) replace(m *message) []Event {
	before := r.gpus
	r.gpus = map[model.DeviceID]*gpu{}
	for i := range m.GPUs {
		id, err := model.ParseDeviceID(m.GPUs[i].ID)
		if err != nil || len(r.gpus) >= mostGPUs {
			continue
		}
		was := before[id]
		if was == nil {
			was = &gpu{}
		}
		g := &gpu{Sensors: m.GPUs[i].Sensors, news: was.news, full: was.full}
		g.Xids, g.MemoryLow = was.Xids, low(&g.Sensors, was.MemoryLow)
		if g.MemoryLow && !was.MemoryLow {
			g.full.count = 1
		}
		r.gpus[id] = g
	}
	for id, g := range before {
		if r.gpus[id] == nil && len(r.gpus) < mostGPUs {
			g.Sensors = control.Sensors{Unknown: "the driver no longer lists it", Xids: g.Xids}
			r.gpus[id] = g
		}
	}
	return r.events()
}

// events returns what is new, unless it was reported a short time ago. Preconditions: r.mu is held.
func (r *Reader) events() (events []Event) {
	now := time.Now()
	add := func(id model.DeviceID, n *news, xid int, text string) {
		if n.count > 0 && now.Sub(n.sent) >= r.limits.again {
			events = append(events, Event{id, xid, text, n.count})
			*n = news{sent: now}
		}
	}
	for _, id := range slices.Sorted(maps.Keys(r.gpus)) {
		g := r.gpus[id]
		for _, code := range slices.Sorted(maps.Keys(g.news)) {
			add(id, g.news[code], code, fmt.Sprintf("the driver reports Xid %d", code))
		}
		if g.MemoryLow {
			add(id, &g.full, 0, "the next allocation may fail: "+g.MemoryText())
		}
	}
	return events
}

// low reports that little memory is free; was: so far.
func low(s *control.Sensors, was bool) bool {
	if s.MemoryFreeBytes == nil || s.MemoryTotalBytes == nil {
		return false
	}
	limit := *s.MemoryTotalBytes / lowShare
	if was {
		limit *= 2
	}
	return *s.MemoryFreeBytes < limit
}

// lose forgets all values, because of err. An error of the driver, such as a GPU that fell off its bus, may be what
// the helper hangs for: its event must not wait for the next values.
func (r *Reader) lose(err error) {
	why := err.Error()
	if errors.Is(err, io.EOF) {
		why = "the process that reads them ended"
	}
	forget := func(more []model.DeviceID) []Event {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.gpus == nil {
			r.gpus = map[model.DeviceID]*gpu{}
		}
		for _, id := range more {
			if r.gpus[id] == nil {
				r.gpus[id] = &gpu{}
			}
		}
		for _, g := range r.gpus {
			g.Sensors = control.Sensors{Unknown: why, Xids: g.Xids}
		}
		return r.events()
	}
	r.notify(forget(nil)) // at once: the question may take long
	forget(r.GPUs())
}
