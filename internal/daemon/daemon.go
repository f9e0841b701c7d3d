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
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"xsched/internal/driver"
	"xsched/internal/driver/nvidia"
	"xsched/internal/engine"
	"xsched/internal/guardian"
	"xsched/internal/hub"
	"xsched/internal/model"
	"xsched/internal/record"
	"xsched/internal/wire"
)

// Names of the sockets in the daemon's directory.
const (
	clientSocket  = "xsched.sock"
	controlSocket = "control.sock"
	vgpuSocket    = "vgpu.sock"
)

// sparePs is how many goroutines can be inside the driver at once without any
// delay for the engine: a goroutine in a blocking call keeps its processor
// until the runtime notices, and the engine thread must find a free one.
const sparePs = 8

type daemon struct {
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
}

var _ Control = (*daemon)(nil)

// Run is the daemon: it returns when ctx ends, after everybody was set free,
// or with the reason why it could not start.
func Run(ctx context.Context, o Options) error {
	d := &daemon{
		opts: o, log: o.Log, uid: os.Geteuid(), started: time.Now(),
		metrics: &driver.Metrics{}, attaches: map[int]struct{}{}, questions: map[model.SessionID]*question{},
		budgets: map[int]*budget{}, filesPerUID: fileShare(), look: make(chan struct{}, 1),
	}
	if d.log == nil {
		d.log = slog.New(slog.DiscardHandler)
	}
	if d.opts.Dir == "" {
		d.opts.Dir = hub.DefaultDir(d.uid, os.Getenv)
	}
	dir, err := filepath.Abs(d.opts.Dir)
	if err != nil {
		return fmt.Errorf("find directory: %w", err)
	}
	d.opts.Dir = dir
	eng, err := d.newEngine()
	if err != nil {
		return err
	}
	if err := hub.PrepareDir(dir, d.uid); err != nil {
		return err
	}
	lock, err := hub.TakeLock(dir)
	if err != nil {
		return err
	}
	defer lock.Release()
	// The client's socket is open to everybody on a root daemon: who is at the
	// other end is asked of the kernel, not of the file's mode.
	mode := os.FileMode(0o600)
	if d.uid == 0 {
		mode = 0o666
	}
	clients, err := hub.Listen("unixpacket", filepath.Join(dir, clientSocket), mode)
	if err != nil {
		return err
	}
	defer func() { _ = clients.Close() }()
	var control *net.UnixListener
	if o.ServeControl != nil {
		if control, err = hub.Listen("unix", filepath.Join(dir, controlSocket), mode); err != nil {
			return err
		}
		defer func() { _ = control.Close() }()
	}
	if n := runtime.NumCPU() + sparePs; runtime.GOMAXPROCS(0) < n {
		defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(n))
	}
	d.findDriver()
	if err := d.assemble(eng, clients); err != nil {
		return err
	}
	return d.serve(ctx, control)
}

func (d *daemon) newEngine() (*engine.Engine, error) {
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
		return nil, &Error{Kind: ErrInvalid, Cause: err.Error()}
	}
	return e, nil
}

func (d *daemon) findDriver() {
	if d.opts.Virtual && d.opts.Platform == "amd" {
		d.noDriver = "the virtual GPU here plays AMD's driver"
		return
	}
	if d.opts.Virtual {
		if d.opts.VGPUSocket == "" {
			d.opts.VGPUSocket = filepath.Join(d.opts.Dir, vgpuSocket)
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
func (d *daemon) cacheLevels() {
	if err := d.driver.CacheLevels(d.opts.Dir); err != nil {
		d.log.Warn("levels are probed again", "err", err)
	}
}

// limits bounds one process, and the files of one user: a user whose programs
// hand over files without end must not take the descriptors of all others.
func (d *daemon) limits(uid int) nvidia.Limits {
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

func (d *daemon) assemble(eng *engine.Engine, clients *net.UnixListener) error {
	command := d.opts.GuardianCommand
	if len(command) == 0 {
		exe, err := os.Executable()
		if err != nil {
			return fmt.Errorf("find this program: %w", err)
		}
		command = []string{exe, "guardian"}
	}
	d.guardian = guardian.NewClient(command, d.opts.Virtual, d.opts.VGPUSocket, d.log)
	cfg := hub.Config{
		Engine: eng, Listener: clients, Log: d.log, Metrics: d.metrics, UID: d.uid, AllowPriority: d.opts.AllowPriority, Private: d.opts.Private,
		MaxSessions: d.opts.MaxSessions, MaxSessionsPerUID: d.opts.MaxSessionsPerUID, NoHardware: d.noDriver,
	}
	cfg.NewHardware = d.newHardware
	if err := d.startRecording(eng, &cfg); err != nil {
		return err
	}
	var err error
	d.hub, err = hub.New(cfg)
	return err
}

// startRecording has the engine loop write down what it does, if that is wanted.
func (d *daemon) startRecording(eng *engine.Engine, cfg *hub.Config) error {
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
			Program: d.opts.Version, Device: device, Started: d.started, Base: hub.NewClock().Now(), Config: eng.Config(),
		},
	})
	if err != nil {
		return err
	}
	d.record, cfg.Recorder = log, log
	return nil
}

// endRecording writes what is left of the recording.
func (d *daemon) endRecording() {
	if d.record == nil {
		return
	}
	err := d.record.Close()
	s := d.record.Stats()
	d.log.Info("recording written", "file", d.opts.Record, "records", s.Records, "dropped", s.Dropped, "bytes", s.Bytes, "err", err)
}

// serve runs until ctx ends or the control server fails, then sets everybody free.
func (d *daemon) serve(ctx context.Context, control *net.UnixListener) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	served := make(chan error, 1)
	if control != nil {
		go func() { served <- d.opts.ServeControl(ctx, control, d) }()
	}
	go d.watchOutsiders(ctx)
	go d.watchBare(ctx)
	if d.opts.Ready != nil {
		d.opts.Ready(d)
	}
	var err error
	select {
	case <-ctx.Done():
	case err = <-served:
		if errors.Is(err, context.Canceled) {
			err = nil
		}
		served <- nil
	}
	cancel()
	// First the GPUs, then the politeness: whoever waits for us to end waits for this.
	d.hub.Close()
	d.guardian.Close()
	d.endRecording()
	if control != nil {
		select {
		case e := <-served:
			if err == nil && !errors.Is(e, context.Canceled) {
				err = e
			}
		case <-time.After(2 * time.Second):
		}
	}
	return err
}

// engineDo runs f on the engine loop; a loop that doesn't answer is an error, not a hang.
func (d *daemon) engineDo(ctx context.Context, f func(e *engine.Engine)) error {
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
		return fail(ErrUnavailable, "see `xsched list --stats`; restart the daemon if it stays", "the engine does not answer")
	case errors.Is(err, hub.ErrStopped), errors.Is(err, context.Canceled):
		return fail(ErrUnavailable, "", "the daemon is stopping")
	}
	return err
}
