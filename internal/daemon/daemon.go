// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"xsched/internal/clock"
	"xsched/internal/control"
	"xsched/internal/driver"
	"xsched/internal/driver/nvidia"
	"xsched/internal/engine"
	"xsched/internal/guardian"
	"xsched/internal/hub"
	"xsched/internal/model"
	"xsched/internal/record"
	"xsched/internal/wire"
)

// sparePs is how many goroutines can be inside the driver at once without any
// delay for the engine: a goroutine in a blocking call keeps its processor
// until the runtime notices, and the engine thread must find a free one.
const sparePs = 8

// Daemon is a running daemon. It implements control.Control; a server offers that to clients.
type Daemon struct {
	opts     Options
	log      *slog.Logger
	uid      int
	started  time.Time
	metrics  *driver.Metrics
	driver   *nvidia.Driver // nil: noDriver says why
	noDriver string
	hub      *hub.Hub
	guardian *guardian.Client
	record   *record.Log // nil: no recording

	mu        sync.Mutex
	attaches  map[int]struct{}              // under way, by pid
	questions map[model.SessionID]*question // to the hardware, under way
	budgets   map[int]*budget               // by uid

	outsiders map[model.DeviceID][]int // programs without a session

	look        chan struct{} // asks for a look at those now
	filesPerUID int

	// shutdown undoes Start, in this order.
	shutdown []func()
}

var _ control.Control = (*Daemon)(nil)

// Start starts a daemon. On success the client socket accepts programs; the caller serves the
// control interface and calls Close.
func Start(o Options) (_ *Daemon, err error) {
	d := &Daemon{
		opts: o, log: o.Log, uid: os.Geteuid(), started: time.Now(),
		metrics: &driver.Metrics{}, attaches: map[int]struct{}{}, questions: map[model.SessionID]*question{},
		budgets: map[int]*budget{}, filesPerUID: fileShare(), look: make(chan struct{}, 1),
	}
	defer func() {
		if err != nil {
			d.Close()
		}
	}()
	if d.log == nil {
		d.log = slog.New(slog.DiscardHandler)
	}
	if d.opts.Dir == "" {
		d.opts.Dir = control.DefaultDir(d.uid, os.Getenv)
	}
	if d.opts.Dir, err = filepath.Abs(d.opts.Dir); err != nil {
		return nil, fmt.Errorf("find directory: %w", err)
	}
	eng, err := d.newEngine()
	if err != nil {
		return nil, err
	}
	if err := control.PrepareDir(d.opts.Dir, d.uid); err != nil {
		return nil, err
	}
	lock, err := hub.TakeLock(d.opts.Dir)
	if err != nil {
		return nil, err
	}
	d.onClose(lock.Release)
	clients, err := d.listen("unixpacket", control.ClientSocket)
	if err != nil {
		return nil, err
	}
	if n := runtime.NumCPU() + sparePs; runtime.GOMAXPROCS(0) < n {
		before := runtime.GOMAXPROCS(n)
		d.onClose(func() { runtime.GOMAXPROCS(before) })
	}
	d.findDriver()
	if err := d.assemble(eng, clients); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	d.onClose(cancel)
	go d.watchOutsiders(ctx)
	go d.watchBare(ctx)
	return d, nil
}

// onClose has f called by Close, before everything that was registered earlier.
func (d *Daemon) onClose(f func()) { d.shutdown = append(d.shutdown, f) }

// Close resumes every program, restores every timeslice and releases the directory.
func (d *Daemon) Close() {
	for _, f := range slices.Backward(d.shutdown) {
		f()
	}
	d.shutdown = nil
}

// ListenControl opens the control socket, until Close.
func (d *Daemon) ListenControl() (net.Listener, error) {
	return d.listen("unix", control.ControlSocket)
}

// listen opens a socket in the directory. On a root daemon every user may connect: the kernel's
// peer credentials identify a client, not the file's mode.
func (d *Daemon) listen(network, name string) (*net.UnixListener, error) {
	mode := os.FileMode(0o600)
	if d.uid == 0 {
		mode = 0o666
	}
	l, err := hub.Listen(network, filepath.Join(d.opts.Dir, name), mode)
	if err != nil {
		return nil, err
	}
	d.onClose(func() { _ = l.Close() })
	return l, nil
}

func (d *Daemon) newEngine() (*engine.Engine, error) {
	cfg := engine.DefaultConfig()
	if d.opts.Policy != "" {
		cfg.Policy = d.opts.Policy
	}
	if d.opts.Mode != "" {
		cfg.Mode, cfg.ForceLevel = d.opts.Mode, d.opts.ModeLevel
	}
	if d.opts.Quantum != 0 {
		cfg.Quantum = d.opts.Quantum
	}
	if d.opts.StarvationBound != 0 {
		cfg.StarvationBound = max(d.opts.StarvationBound, 0)
	}
	e, err := engine.New(cfg)
	if err != nil {
		return nil, &control.Error{Kind: control.ErrInvalid, Cause: err.Error()}
	}
	return e, nil
}

func (d *Daemon) findDriver() {
	if d.opts.Virtual && d.opts.Platform == "amd" {
		d.noDriver = "the virtual GPU here plays AMD's driver"
		return
	}
	if d.opts.Virtual {
		if d.opts.VGPUSocket == "" {
			d.opts.VGPUSocket = filepath.Join(d.opts.Dir, control.VirtualSocket)
		}
		d.driver = nvidia.NewVirtualDriver(d.opts.VGPUSocket)
		d.cacheLevels()
		return
	}
	drv, err := nvidia.NewDriver()
	if err != nil {
		d.noDriver = err.Error()
		d.log.Warn("no hardware preemption: only level 1", "err", err)
		return
	}
	d.driver = drv
	d.log.Info("driver found", "version", drv.Version)
	d.cacheLevels()
}

// cacheLevels remembers what GPUs were shown to do over the daemon's end.
func (d *Daemon) cacheLevels() {
	if err := d.driver.CacheLevels(d.opts.Dir); err != nil {
		d.log.Warn("levels are probed again", "err", err)
	}
}

// limits bounds one process, and the files of one user: a user whose programs
// hand over files without end must not take the descriptors of all others.
func (d *Daemon) limits(uid int) nvidia.Limits {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := time.Now()
	for u, b := range d.budgets {
		if u != uid && !b.InUse() && now.Sub(b.asked) > budgetAge {
			delete(d.budgets, u)
		}
	}
	if d.budgets[uid] == nil {
		d.budgets[uid] = &budget{Budget: nvidia.Budget{Most: d.filesPerUID}}
	}
	b := d.budgets[uid]
	b.asked = now
	return nvidia.Limits{Clients: wire.MaxRMClients, Objects: wire.MaxRMObjects, Files: &b.Budget}
}

// budget is a user's files. It stays while a process of the user's may take from it: a second
// one would be a second share.
type budget struct {
	nvidia.Budget
	asked time.Time // for the last time
}

// budgetAge is longer than it takes from asking for limits to their use.
const budgetAge = time.Minute

// fileShare is a user's share of the descriptors this process may have.
func fileShare() int {
	const leastShare, most = 64, 1 << 20
	var lim unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &lim); err != nil {
		return leastShare
	}
	return int(max(leastShare, min(lim.Cur, most)/4))
}

func (d *Daemon) assemble(eng *engine.Engine, clients *net.UnixListener) error {
	command := d.opts.GuardianCommand
	if len(command) == 0 {
		exe, err := os.Executable()
		if err != nil {
			return fmt.Errorf("find this program: %w", err)
		}
		command = []string{exe, "guardian"}
	}
	cfg := hub.Config{
		Engine: eng, Listener: clients, Log: d.log, Metrics: d.metrics, UID: d.uid, AllowPriority: d.opts.AllowPriority, Private: d.opts.Private,
		MaxSessions: d.opts.MaxSessions, MaxSessionsPerUID: d.opts.MaxSessionsPerUID, NoHardware: d.noDriver,
	}
	cfg.NewHardware = d.newHardware
	if err := d.startRecording(eng, &cfg); err != nil {
		return err
	}
	d.guardian = guardian.NewClient(command, d.opts.Virtual, d.opts.VGPUSocket, d.log)
	d.onClose(d.guardian.Close)
	var err error
	if d.hub, err = hub.New(cfg); err != nil {
		return err
	}
	d.onClose(d.hub.Close)
	return nil
}

// startRecording has the engine loop write down what it does, if that is wanted.
func (d *Daemon) startRecording(eng *engine.Engine, cfg *hub.Config) error {
	if d.opts.Record == "" {
		return nil
	}
	device := "GPU"
	if d.opts.Virtual {
		device = "virtual GPU"
	}
	log, err := record.Create(d.opts.Record, record.Options{
		Log: d.log,
		Header: record.Header{
			Program: d.opts.Version, Device: device, Started: d.started, Base: clock.Now(), Config: eng.Config(),
		},
	})
	if err != nil {
		return err
	}
	d.record, cfg.Recorder = log, log
	d.onClose(d.endRecording)
	return nil
}

// endRecording writes what is left of the recording.
func (d *Daemon) endRecording() {
	_ = d.record.Close() // in Stats
	s := d.record.Stats()
	d.log.Info("recording written", "file", d.opts.Record, "records", s.Records, "dropped", s.Dropped, "bytes", s.Bytes, "err", s.Err)
}

// engineDo runs f on the engine loop; a loop that doesn't answer is an error, not a hang.
func (d *Daemon) engineDo(ctx context.Context, f func(e *engine.Engine)) error {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	return unavailable(d.hub.Engine(ctx, f))
}

const answerTime = 5 * time.Second

func unavailable(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, context.DeadlineExceeded):
		return control.Errorf(control.ErrUnavailable, "see `xsched list --stats`; restart the daemon if it stays", "the engine does not answer")
	case errors.Is(err, hub.ErrStopped), errors.Is(err, context.Canceled):
		return control.Errorf(control.ErrUnavailable, "", "the daemon is stopping")
	}
	return err
}
