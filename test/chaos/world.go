// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"xsched/internal/control"
	"xsched/internal/virtual"
	vdevice "xsched/internal/virtual/device"
	"xsched/test/proc"
)

// tools are the files under test, in a folder that every user can read.
type tools struct {
	xsched, other string // other: another release, or empty
	kube          string // the node plugin, or empty
	self          string
	tenant        string
	libraries     string // of the virtual driver
	folder        string
}

const secondUser = 65534

// world is one daemon with its own virtual GPU and tenants.
type world struct {
	tools  tools
	setup  Setup
	dir    string       // the daemon's folder
	base   string       // everything else of this world
	mounts []string     // small file systems
	memory *memoryGroup // of the daemon; nil: none
	stalls *stalls
	ledger *ledger

	platform virtual.Platform
	device   *exec.Cmd
	gpu      *vdevice.Client
	daemon   *daemon
	guardian *service // nil: the daemon starts its own
	api      *apiServer
	node     *service // nil: no Kubernetes
	tenants  []*tenant
	log      proc.Tail // of the device

	attached atomic.Pointer[error] // result of the last attach
	closing  atomic.Bool
	watching chan struct{}
	tending  chan struct{}
	asking   chan struct{}
	guests   sync.WaitGroup

	baseline usage
	batches  uint64 // released to the device by the tenants of the last quiet check

	guardMu      sync.Mutex
	unguarded    int64 // until when no guardian may be there
	orphan       bool  // the daemon was silent meanwhile
	deviceFaults int

	stepping sync.Mutex // one fault at a time steps the wall clock
}

// usage is what a daemon holds while nothing happens.
type usage struct {
	files, goroutines int
	rssKB             int64
}

func newWorld(t tools, s Setup, m *stalls) (*world, error) {
	w := &world{tools: t, setup: s, stalls: m, ledger: newLedger(), watching: make(chan struct{}), tending: make(chan struct{}), asking: make(chan struct{})}
	if err := w.begin(); err != nil {
		w.abandon()
		return nil, err
	}
	go w.watch()
	go w.tend()
	go w.ask()
	return w, nil
}

// begin starts the device, the daemon and the tenants. The caller abandons what it leaves on failure.
func (w *world) begin() error {
	if err := w.folders(); err != nil {
		return err
	}
	p, ok := virtual.Find(w.setup.Platform)
	if !ok {
		return fmt.Errorf("unknown platform %q", w.setup.Platform)
	}
	w.platform = p
	if err := w.startDevice(); err != nil {
		return err
	}
	if w.setup.Service {
		w.guardian = startService(w, w.guardianService)
	}
	w.daemon = startDaemon(w)
	if !w.daemon.awaitUp(20 * time.Second) {
		return errors.New("the daemon does not answer: " + strings.Join(w.daemon.log.Lines(3), " | "))
	}
	for _, s := range w.specs() {
		w.tenants = append(w.tenants, &tenant{spec: s, w: w, excuses: map[string]int{}})
	}
	var all sync.WaitGroup
	errs := make([]error, len(w.tenants))
	for i, t := range w.tenants {
		all.Go(func() { errs[i] = t.start() })
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil || !w.setup.Kube {
		return err
	}
	return w.startNode()
}

// specs are the steady tenants.
func (w *world) specs() []spec {
	last := w.setup.Devices - 1
	out := []spec{
		{role: "high", priority: 10, kernelUS: 1000, load: "rate 50"},
		{role: "low", kernelUS: 5000, load: "loop"},
		{role: "lower", priority: -5, kernelUS: 3000, load: "loop", device: last, old: w.setup.OldShim},
		{role: "bare", kernelUS: 4000, load: "loop", bare: true},
	}
	if w.setup.Batch { // 12 kernels in 3.6 ms of CPU time
		out[0].kernelUS, out[0].feed = 30, 12
	}
	if os.Geteuid() == 0 {
		out = append(out, spec{role: "user", kernelUS: 4000, load: "loop", device: last, uid: secondUser})
	}
	return out
}

func (w *world) tenant(role string) *tenant {
	for _, t := range w.tenants {
		if t.role == role {
			return t
		}
	}
	return w.tenants[0]
}

func (w *world) binary(old bool) string {
	if old && w.tools.other != "" {
		return w.tools.other
	}
	return w.tools.xsched
}

func (w *world) serveArgs() []string {
	args := []string{
		"serve", "--virtual", "--platform", w.setup.Platform,
		"--starvation-bound", starvationBound.String(), "--quantum", quantum.String(),
	}
	if w.setup.Record {
		args = append(args, "--record", filepath.Join(w.dir, "record"))
	}
	return args
}

// env is the environment of this world's processes.
func (w *world) env(extra ...string) []string {
	var env []string
	for _, kv := range os.Environ() {
		if !strings.HasPrefix(kv, "XSCHED_") {
			env = append(env, kv)
		}
	}
	return append(append(env, "XSCHED_DIR="+w.dir, "XSCHED_CACHE="+filepath.Join(w.base, "cache")), extra...)
}

func (w *world) startDevice() error {
	socket := w.platform.Socket(w.dir)
	w.device = exec.Command(w.tools.xsched, "vgpu", "--platform", w.setup.Platform, "--devices", strconv.Itoa(w.setup.Devices), "--socket", socket)
	if s := w.platform.Env(w.dir); len(s) > 1 {
		w.device.Args = append(w.device.Args, "--root", filepath.Join(w.dir, "kfd"))
	}
	if w.setup.Platform == "amd" && w.setup.OldShim {
		// The previous release's stand-in for HIP creates queues without save areas. Newer drivers
		// reject them.
		w.device.Args = append(w.device.Args, "--driver", "1.16")
	}
	w.device.Env = w.env()
	w.device.Stderr = &w.log
	if err := proc.Start(w.device); err != nil {
		return err
	}
	var err error
	if !w.eventually(10*time.Second, func() bool {
		w.gpu, err = vdevice.Dial(w.platform.Watch(socket))
		return err == nil
	}) {
		return fmt.Errorf("the virtual GPU does not answer: %w", err)
	}
	if os.Geteuid() == 0 { // the second user's programs use it too
		return os.Chmod(socket, 0o666)
	}
	return nil
}

// command returns a tenant's command line.
func (w *world) command(s spec) *exec.Cmd {
	argv := []string{w.tools.tenant, "--name", s.role, "--kernel-us", strconv.Itoa(s.kernelUS), "--api", w.platform.API, "--device", strconv.Itoa(s.device)}
	if s.feed > 0 {
		argv = append(argv, "--feed", strconv.Itoa(s.feed))
	}
	env := w.env()
	if s.bare {
		for name, value := range w.platform.Env(w.dir) {
			env = append(env, name+"="+value)
		}
		env = append(env, "LD_PRELOAD="+filepath.Join(w.tools.libraries, kernelLibrary(w.setup.Platform)), "LD_LIBRARY_PATH="+w.tools.libraries)
	} else {
		argv = append([]string{w.binary(s.old), "run", "--virtual", "--priority", strconv.Itoa(s.priority), "--"}, argv...)
	}
	if len(s.spaces) > 0 {
		argv = append([]string{w.tools.self, "enter", strings.Join(s.spaces, ","), s.offset.String(), "--"}, argv...)
	}
	if s.uid != 0 {
		env = append(env, "XSCHED_CACHE="+filepath.Join(w.base, "user", "cache"), "HOME="+filepath.Join(w.base, "user"))
	}
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env = env
	if s.uid != 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: s.uid, Gid: s.uid}}
	}
	return cmd
}

// kernelLibrary stands in for the kernel driver.
func kernelLibrary(platform string) string {
	if platform == "amd" {
		return "libvkfd.so"
	}
	return "libvgpu.so"
}

// eventually polls; the limit excludes stalls, up to a minute.
func (w *world) eventually(limit time.Duration, ok func() bool) bool {
	begin := now()
	for {
		if ok() {
			return true
		}
		if at := now(); w.stalls.elapsed(begin, at) > limit || time.Duration(at-begin) > limit+time.Minute {
			return false
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// tend attaches the programs without a shim whenever a daemon does not know them.
func (w *world) tend() {
	defer close(w.tending)
	for !w.closing.Load() {
		time.Sleep(100 * time.Millisecond)
		if h := w.daemon.health(); h.ready == 0 || h.native {
			continue
		}
		list, err := call(time.Second, w.daemon.client.List)
		if err != nil {
			continue
		}
		for _, t := range w.tenants {
			if _, excused := t.excused(); !t.bare || excused || t.isAway() || find(list, t.pid()) != nil {
				continue
			}
			priority := int32(t.priority)
			_, err := call(3*time.Second, func(ctx context.Context) (control.ProcessReply, error) {
				return w.daemon.client.AttachWith(ctx, control.ProcessRequest{PID: t.pid(), Priority: &priority})
			})
			w.attached.Store(&err)
		}
	}
}

func (t *tenant) isAway() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.away
}

func find(list control.List, pid int) *control.Process {
	for i := range list.Processes {
		if list.Processes[i].PID == pid {
			return &list.Processes[i]
		}
	}
	return nil
}

// run carries out a schedule and returns what it broke.
func (w *world) run(s Schedule, stop <-chan struct{}) {
	if w.quiet(true); w.ledger.failed() {
		return
	}
	for _, segment := range s.Segments {
		select {
		case <-stop:
			return
		default:
		}
		w.segment(segment)
		if w.quiet(false); w.ledger.failed() {
			return
		}
	}
}

// segment injects its faults at their times and waits for their ends.
func (w *world) segment(faults []Fault) {
	begin := time.Now()
	var all sync.WaitGroup
	for _, f := range faults {
		k, ok := findKind(f.Kind)
		if !ok {
			continue
		}
		time.Sleep(time.Until(begin.Add(time.Duration(f.AtMS) * time.Millisecond)))
		if w.ledger.failed() {
			break
		}
		all.Go(func() {
			r := w.ledger.begin(f)
			w.ledger.end(r, k.do(w, f))
		})
	}
	all.Wait()
	w.guests.Wait()
}

// close ends everything and checks that nothing is left.
func (w *world) close() {
	if !w.ledger.failed() {
		w.farewell()
	}
	w.abandon()
}

// abandon ends everything without checks.
func (w *world) abandon() {
	w.closing.Store(true)
	if w.daemon != nil {
		if cmd := w.daemon.process(); cmd != nil {
			_ = cmd.Process.Kill()
		}
		<-w.daemon.ended
	}
	w.guardian.end(syscall.SIGKILL)
	w.node.end(syscall.SIGKILL)
	if w.api != nil {
		_ = w.api.http.Close()
	}
	for _, t := range w.tenants {
		t.kill()
	}
	if w.device != nil && w.device.Process != nil {
		_ = w.device.Process.Kill()
		_ = w.device.Wait()
	}
	if w.gpu != nil {
		_ = w.gpu.Close()
	}
	if w.dir != "" {
		w.signalAll(w.processes(""), syscall.SIGKILL, "")
	}
	for _, path := range w.mounts {
		_ = unix.Unmount(path, unix.MNT_DETACH)
	}
	w.memory.remove()
	if w.base != "" {
		_ = os.RemoveAll(w.base)
	}
}
