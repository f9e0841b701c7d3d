// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"time"

	"xsched/internal/clock"
	"xsched/internal/control"
	"xsched/internal/driver"
	"xsched/internal/driver/registry"
	"xsched/internal/engine"
	"xsched/internal/guardian"
	"xsched/internal/health"
	"xsched/internal/keeper"
	"xsched/internal/ledger"
	"xsched/internal/loop"
	"xsched/internal/model"
	"xsched/internal/quarantine"
	"xsched/internal/record"
	"xsched/internal/session"
)

// sparePs is the number of goroutines that may block in the driver without delaying the engine. A
// goroutine in a blocking call keeps its P until the runtime notices; the engine thread needs a
// free one.
const sparePs = 8

// Daemon is a running daemon. It makes the parts, connects them and ends them. The parts own the rest
// of the state, and serve the requests of clients.
type Daemon struct {
	service
	opts     Options
	log      *slog.Logger
	metrics  *driver.Metrics
	drivers  *driver.Set
	loop     *loop.Loop
	server   *session.Server
	guardian *guardian.Client
	record   *record.Log // nil: no recording
	access   *access
	keeper   *keeper.Keeper
	ledger   *ledger.Ledger
	terms    *terms
	health   *health.Monitor
	machine  *machine

	unmanaged *unmanaged
	observer  *observer
	sensors   *sensors

	lock *session.Lock
	// listeners are the sockets in the directory.
	listeners []*quarantine.Listener
	failure   failure

	// shutdown undoes Start, from the last step to the first. closeTime limits it.
	shutdown  []func()
	closeTime time.Duration
}

// Start starts a daemon. On success the client socket accepts programs; the caller serves the
// control interface and calls Close.
func Start(o Options) (_ *Daemon, err error) {
	d := &Daemon{
		opts: o, log: o.Log, access: &access{uid: os.Geteuid()}, terms: &terms{}, metrics: &driver.Metrics{}, health: cmp.Or(o.Health, &health.Monitor{}),
		failure: failure{ended: make(chan struct{})}, closeTime: closeTime,
	}
	defer func() {
		if err != nil {
			d.Close()
		}
	}()
	if err := d.complete(); err != nil {
		return nil, err
	}
	d.openState()
	eng, err := engine.New(inForce(d.keeper, d.log, &d.opts))
	if err != nil {
		return nil, &control.Error{Kind: control.ErrInvalid, Cause: err.Error()}
	}
	clients, err := d.openFolder()
	if err != nil {
		return nil, err
	}
	if n := runtime.NumCPU() + sparePs; runtime.GOMAXPROCS(0) < n {
		before := runtime.GOMAXPROCS(n)
		d.onClose(func() { runtime.GOMAXPROCS(before) })
	}
	// Close cancels the self-tests first, then resumes the programs, then waits for the tests.
	tests := &sync.WaitGroup{}
	d.onClose(func() { d.awaitTests(tests) })
	// The last settings are saved after the programs are resumed: the disk may be slow.
	// So is the usage, which is larger and waits for the disk, after them.
	var keeping, accounting sync.WaitGroup
	d.onClose(func() { accounting.Wait(); d.ledger.Save() })
	d.onClose(func() { keeping.Wait(); d.keeper.Save() })
	if err := d.assemble(eng, clients, d.openDrivers()); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	d.onClose(cancel)
	parts := d.addParts()
	go d.unmanaged.run(ctx, parts.scan)
	go d.observer.run(ctx, parts.observer)
	go d.holds.run(ctx, parts.holds)
	go d.chronicle.run(ctx, parts.history)
	go d.watchFolder(ctx, d.lock.Held, parts.folder)
	keeping.Go(func() { d.keeper.Run(ctx, parts.settings) })
	accounting.Go(func() { d.ledger.Run(ctx, parts.usage) })
	d.keepTested(ctx, tests)
	return d, nil
}

// complete adds the defaults to the options.
func (d *Daemon) complete() (err error) {
	if d.log == nil {
		d.log = slog.New(slog.DiscardHandler)
	}
	if d.opts.Dir == "" {
		d.opts.Dir = control.DefaultDir(d.access.uid, os.Getenv)
	}
	if d.opts.Dir, err = filepath.Abs(d.opts.Dir); err != nil {
		return fmt.Errorf("find directory: %w", err)
	}
	return nil
}

// openState reads what a previous daemon kept.
func (d *Daemon) openState() {
	d.keeper = keeper.Open(d.opts.KeepFile, d.log)
	d.ledger = ledger.Open(d.opts.KeepFile, clock.Now(), time.Now(), d.log)
	d.terms.configured.Store(&configured{rules: d.opts.Rules, reply: d.opts.Config, read: stateOfFile(d.opts.ConfigFile)})
	d.terms.grants.Store(restoreGrants(d.keeper.Grants(), d.log))
	d.keeper.Prune(func(key string) string { return over(d.opts.Config.Values, key) })
}

// openFolder takes the runtime folder and opens the socket for clients there.
func (d *Daemon) openFolder() (clients *quarantine.Listener, err error) {
	if err := control.PrepareDir(d.opts.Dir, d.access.uid); err != nil {
		return nil, err
	}
	if d.lock, err = session.TakeLock(d.opts.Dir); err != nil {
		return nil, err
	}
	d.onClose(d.lock.Release)
	if clients, err = d.listen("unixpacket", filepath.Join(control.ClientDir, control.ClientSocket)); err != nil {
		return nil, err
	}
	return clients, d.linkClients()
}

// Alive reports that every vital part of the daemon works. It waits for none of them.
func (d *Daemon) Alive() bool { return d.health.Alive() }

// onClose registers a step of Close; steps run in reverse order.
func (d *Daemon) onClose(f func()) { d.shutdown = append(d.shutdown, f) }

// ListenControl opens the control socket, until Close.
func (d *Daemon) ListenControl() (net.Listener, error) {
	return d.listen("unix", control.ControlSocket)
}

// ListenTenants opens the control socket for containers, until Close. Its connections have their own
// limits.
func (d *Daemon) ListenTenants() (net.Listener, error) {
	return d.listen("unix", filepath.Join(control.ClientDir, control.ControlSocket))
}

// linkClients makes the client socket available where earlier shims expect it. A hard link, unlike a
// symbolic one, is a stale socket to an earlier daemon, which replaces it.
func (d *Daemon) linkClients() error {
	link := filepath.Join(d.opts.Dir, control.ClientSocket)
	if err := session.RemoveStale("unixpacket", link); err != nil {
		return err
	}
	if err := os.Link(filepath.Join(d.opts.Dir, control.ClientDir, control.ClientSocket), link); err != nil {
		return fmt.Errorf("link the client socket: %w", err)
	}
	d.onClose(func() {
		if d.lock.Held() {
			_ = os.Remove(link)
		}
	})
	return nil
}

// listen opens a socket in the directory. On a root daemon every user may connect: the kernel's
// peer credentials identify a client, not the file's mode.
func (d *Daemon) listen(network, name string) (*quarantine.Listener, error) {
	mode := os.FileMode(0o600)
	if d.access.uid == 0 {
		mode = 0o666
	}
	path := filepath.Join(d.opts.Dir, name)
	l, err := session.Listen(network, path, mode)
	if err != nil {
		return nil, err
	}
	kept, err := quarantine.Listen(l) // the path may lead to the socket of another daemon at the end: it stays
	if err != nil {
		return nil, err
	}
	d.listeners = append(d.listeners, kept)
	d.onClose(func() {
		kept.Refuse()
		_ = kept.Close()
		if d.lock.Held() {
			_ = os.Remove(path)
		}
	})
	return kept, nil
}

// openDrivers detects the drivers of this host, or the selected virtual one.
func (d *Daemon) openDrivers() driver.Place {
	all := registry.All()
	if d.opts.Platform == "" {
		d.opts.Platform = all[0].Name()
	}
	place := driver.Place{Dir: d.opts.Dir, Virtual: d.opts.Virtual, Socket: d.opts.VGPUSocket}
	d.drivers = driver.OpenAll(all, driver.Options{Place: place, StateDir: d.opts.StateDir, Version: d.opts.Version, Log: d.log, Metrics: d.metrics}, d.opts.Platform)
	if d.drivers.Empty() {
		d.log.Warn("no driver: only level 1", "reason", d.drivers.Absent())
	}
	d.machine = &machine{log: d.log, drivers: d.drivers, examine: d.opts.Examine}
	d.machine.refresh()
	return place
}

// keepTested runs the background self-tests of each driver, including drivers found later, and reads the values of
// its GPUs. With self-tests disabled, the drivers still report other releases and new results.
func (d *Daemon) keepTested(ctx context.Context, tests *sync.WaitGroup) {
	o := driver.SelfTestOptions{Program: d.opts.SelfTest, OnlyIfNeeded: d.opts.Private}
	d.drivers.Found(func(i driver.Instance) {
		keepTested(ctx, i, o, d.health, d.server.Refresh, tests)
		d.sensors.watch(ctx, i)
	})
}

// keepTested runs the background self-tests of a driver that has some.
func keepTested(ctx context.Context, i driver.Instance, o driver.SelfTestOptions, m *health.Monitor, changed func(), tests *sync.WaitGroup) {
	if t, ok := i.(driver.SelfTester); ok && ctx.Err() == nil {
		o.Beat = m.Add(driverPart, driverLimit, false).Beat
		tests.Go(func() { t.KeepTested(ctx, o, changed) })
	}
}

// testsTime bounds the wait for canceled self-tests. A test may be stuck in the driver.
const testsTime = 3 * time.Second

func (d *Daemon) awaitTests(tests *sync.WaitGroup) {
	done := make(chan struct{})
	go func() {
		tests.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(testsTime):
		d.log.Warn("a self-test did not end", "waited", testsTime)
	}
}

// assemble starts the guardian, the loop and the server, and makes the parts that use them.
func (d *Daemon) assemble(eng *engine.Engine, clients *quarantine.Listener, place driver.Place) error {
	past := &chronicle{log: d.log, access: d.access, terms: d.terms, users: &userNames{}}
	past.usage = &usage{ledger: d.ledger, access: d.access, terms: d.terms, users: past.users, gpus: hostGPUs{drivers: d.drivers}}
	d.unmanaged = &unmanaged{log: d.log, drivers: d.drivers, access: d.access, wake: make(chan struct{}, 1), found: past.unmanaged}
	d.sensors = &sensors{log: d.log, health: d.health, helper: d.opts.Sensors, fault: past.sensed}
	if err := d.openAlerts(past); err != nil {
		return err
	}
	d.observer = &observer{access: d.access, polls: d.health.AddCalls(pollsPart, pollsLimit, false)}
	cfg := loop.Config{
		Engine: eng, Log: d.log, Metrics: d.metrics, UID: d.access.uid, Limits: d.opts.Limits, Private: d.opts.Private, Budget: d.opts.Budget,
		Scan: d.unmanaged.request, HostMemory: d.opts.HostMemory,
		Capacity: func(gpu model.DeviceID) model.Bytes {
			return model.Bytes(min(d.drivers.Describe(gpu, false).MemoryBytes, math.MaxInt64))
		},
	}
	if err := d.startRecording(eng, &cfg); err != nil {
		return err
	}
	end, err := past.open(&d.opts)
	if err != nil {
		return err
	}
	d.onClose(end)
	cfg.Trace = past.trace
	recovery := d.recover()
	d.startGuardian(place)
	d.service = d.newService(past, recovery)
	if d.loop, err = loop.New(cfg); err != nil {
		return err
	}
	d.access.loop = d.loop
	d.onClose(d.loop.Stop)
	if d.server, err = session.New(session.Config{
		Loop: d.loop, Listener: clients, Log: d.log, Metrics: d.metrics, NewHardware: d.drivers.NewSession, Left: d.unmanaged.left, Joined: past.joined, Ended: past.ended, Removed: past.usage.removed,
		Terms: d.terms.of, Kept: d.keeper.Kept,
		Health: d.health, MaxSessions: d.opts.MaxSessions, MaxSessionsPerUID: d.opts.MaxSessionsPerUID, Budget: d.opts.Budget,
	}); err != nil {
		return err
	}
	d.access.server = d.server
	d.onClose(d.server.Close)
	return nil
}

// startGuardian starts the process that resumes attached programs when the daemon goes.
func (d *Daemon) startGuardian(place driver.Place) {
	command := d.opts.GuardianCommand
	if len(command) == 0 {
		// The running program, not the file that has its name now: an upgrade may have replaced it.
		command = []string{"/proc/self/exe", "guardian"}
	}
	d.guardian = guardian.NewClient(guardian.Options{
		Command: command, Place: place, Version: d.opts.Version, Cgroup: d.opts.GuardianCgroup, Log: d.log,
		Busy: d.health.Add("guardian", guardianLimit, false), Alive: d.health.Add(guardianPart, guardianLimit, false),
	})
	d.onClose(d.guardian.Close)
}

// recoverTime bounds how long the daemon waits at start for processes that a dead daemon left. A
// silent device delays only its own process.
const recoverTime = 100 * time.Millisecond

func (d *Daemon) recover() *guardian.Recovery {
	recovery := guardian.Recover(d.opts.Dir, registry.All(), d.log)
	ctx, cancel := context.WithTimeout(context.Background(), recoverTime)
	defer cancel()
	_ = recovery.Wait(ctx, 0)
	return recovery
}

// startRecording starts the recording, if one is configured.
func (d *Daemon) startRecording(eng *engine.Engine, cfg *loop.Config) error {
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
			Program: d.opts.Version, Device: device, Started: time.Now(), Base: clock.Now(), Config: eng.Config(),
		},
	})
	if err != nil {
		return err
	}
	d.record, cfg.Recorder = log, log
	d.onClose(d.endRecording)
	return nil
}

// endRecording flushes and closes the recording.
func (d *Daemon) endRecording() {
	_ = d.record.Close() // the error is in Stats
	s := d.record.Stats()
	d.log.Info("recording written", "file", d.opts.Record, "records", s.Records, "dropped", s.Dropped, "bytes", s.Bytes, "err", s.Err)
}

const answerTime = 5 * time.Second

func unavailable(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, context.DeadlineExceeded):
		return control.Errorf(control.ErrUnavailable, "see `xsched list --stats`; restart the daemon if this persists", "the engine does not respond")
	case errors.Is(err, loop.ErrStopped), errors.Is(err, context.Canceled):
		return control.Errorf(control.ErrUnavailable, "", "the daemon is stopping")
	}
	return err
}
