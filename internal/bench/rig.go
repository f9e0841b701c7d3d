// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"time"

	"xsched/internal/control"
	"xsched/internal/control/client"
	"xsched/internal/embedded"
	"xsched/internal/model"
)

// Faults that a run can inject, to test that the proof detects them.
const (
	FaultShimInert        = "shim-inert"        // XSCHED_DISABLE=1 in the tenants
	FaultSuspendNoop      = "suspend-noop"      // the device acknowledges suspensions and ignores them
	FaultTimesliceIgnored = "timeslice-ignored" // the device acknowledges timeslices and ignores them
)

// Rig is the environment of the tenants: a daemon and, unless the GPU is real, a virtual device.
type Rig struct {
	Exe        string // this program
	Dir        string // sockets
	Virtual    bool
	Platform   string // of the virtual GPU, a name of internal/virtual
	Attached   bool   // low tenants get no shim
	Inert      bool   // FaultShimInert
	Daemon     *client.Client
	Device     Device // nil on a real GPU
	Scheduling string // of the tenants
	Serve      *service
	cleanup    []func()
}

// Close undoes everything in reverse order.
func (r *Rig) Close() {
	for _, v := range slices.Backward(r.cleanup) {
		v()
	}
}

// Private describes a daemon of its own, on the GPUs of this machine or, with a platform, on a virtual GPU of
// its own.
type Private struct {
	Platform, Fault string
	Memory          model.Bytes // of the virtual GPU; 0: that of the platform
	Serve           []string    // further flags
}

// OpenPrivate starts a daemon of its own in a private directory.
func OpenPrivate(ctx context.Context, exe string, o Private) (_ *Rig, err error) {
	r := &Rig{Exe: exe, Virtual: o.Platform != "", Platform: o.Platform, Inert: o.Fault == FaultShimInert}
	defer func() {
		if err != nil {
			r.Close()
		}
	}()
	var remove func()
	if r.Dir, remove, err = Folder("xsched-bench-"); err != nil {
		return nil, err
	}
	r.cleanup = append(r.cleanup, remove)
	argv := []string{"serve", "--http", "off", "--self-test", "off"} // nothing else may use the GPU
	if r.Virtual {
		if err := r.startDevice(ctx, o.Fault, o.Memory); err != nil {
			return nil, err
		}
		argv = []string{"serve", "--virtual", "--platform", o.Platform}
	}
	if r.Serve, err = r.startService(append(argv, o.Serve...)...); err != nil {
		return nil, err
	}
	return r, r.connect(ctx, r.Serve)
}

// OpenRunning uses the daemon that runs in dir, on a real GPU.
func OpenRunning(ctx context.Context, exe, dir string) (*Rig, error) {
	r := &Rig{Exe: exe, Dir: dir}
	if err := r.connect(ctx, nil); err != nil {
		return nil, err
	}
	v, err := r.Daemon.Version(ctx)
	if err != nil {
		return nil, err
	}
	before, err := r.Daemon.Mode(ctx)
	if err != nil {
		return nil, err
	}
	if r.Virtual = v.Virtual; r.Virtual {
		r.Platform = v.Platform
		if err := r.DialDevice(r.DeviceSocket()); err != nil {
			return nil, err
		}
	}
	// Restore the user's mode in any case.
	r.cleanup = append(r.cleanup, func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		_, _ = r.Daemon.SetMode(ctx, control.ModeRequest{Mode: before.Mode, Level: before.Level})
	})
	return r, nil
}

// service is a child process that runs until it is stopped.
type service struct {
	name string
	cmd  *exec.Cmd
	errs Tail
	done chan struct{}
}

func (r *Rig) startService(args ...string) (*service, error) {
	s := &service{name: args[0], done: make(chan struct{})}
	s.cmd = exec.Command(r.Exe, args...)
	s.cmd.Env = WithEnv("XSCHED_DIR=" + r.Dir)
	s.cmd.Stdout, s.cmd.Stderr = &s.errs, &s.errs
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	if err := s.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start xsched %s: %w", args[0], err)
	}
	go func() {
		_ = s.cmd.Wait()
		close(s.done)
	}()
	r.cleanup = append(r.cleanup, s.Stop)
	return s, nil
}

// PID returns the process.
func (s *service) PID() int { return s.cmd.Process.Pid }

func (s *service) Stop() {
	_ = s.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-s.done:
	case <-time.After(3 * time.Second):
		_ = s.cmd.Process.Kill()
		<-s.done
	}
}

// connect waits until the daemon answers. own is the service that should, or nil.
func (r *Rig) connect(ctx context.Context, own *service) error {
	r.Daemon = client.New(filepath.Join(r.Dir, control.ControlSocket))
	r.cleanup = append(r.cleanup, r.Daemon.Close)
	return r.until(ctx, own, func() error {
		_, err := r.Daemon.Version(ctx)
		return err
	})
}

// until repeats try until it succeeds, the service has ended, or 10 s have passed.
func (r *Rig) until(ctx context.Context, own *service, try func() error) error {
	limit := time.Now().Add(10 * time.Second)
	for {
		err := try()
		if err == nil || own == nil {
			return err
		}
		select {
		case <-own.done:
			return fmt.Errorf("xsched %s ended at once%s", own.name, own.errs.Suffix())
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(20 * time.Millisecond):
		}
		if time.Now().After(limit) {
			return fmt.Errorf("xsched %s does not answer: %w%s", own.name, err, own.errs.Suffix())
		}
	}
}

// Program describes a load generator.
type Program struct {
	Name     string
	Priority int
	KernelUS int
	Depth    int      // kernels in flight
	Run      []string // further options of xsched run
	Args     []string // further arguments of its own
	Bare     bool     // it runs without the shim
}

// StartTenant starts the i-th tenant.
func (r *Rig) StartTenant(i int, w Workload) (*Tenant, error) {
	if i == 0 {
		return r.Start(Program{Name: TenantName(i), Priority: 10, KernelUS: w.HighUS, Depth: 1})
	}
	// Two kernels in flight keep the GPU busy over the low tenants' own pauses.
	return r.Start(Program{Name: TenantName(i), KernelUS: w.LowUS, Depth: 2, Bare: r.Attached})
}

// Start starts a load generator as a user would: with `xsched run`.
func (r *Rig) Start(p Program) (*Tenant, error) {
	program, err := embedded.Unpack(embedded.Tenant)
	if err != nil {
		return nil, fmt.Errorf("unpack the tenant: %w", err)
	}
	argv := append([]string{program, "--name", p.Name, "--kernel-us", strconv.Itoa(p.KernelUS), "--depth", strconv.Itoa(p.Depth)}, p.Args...)
	if r.Platform != "" {
		argv = append(argv, "--api", r.virtual().API)
	}
	env := WithEnv("XSCHED_DIR=" + r.Dir)
	if p.Bare {
		more, err := r.DeviceEnv()
		if err != nil {
			return nil, err
		}
		env = append(env, more...)
	} else {
		run := []string{r.Exe, "run"}
		if r.Virtual {
			run = append(run, "--virtual")
		}
		run = append(append(run, "--priority", strconv.Itoa(p.Priority)), p.Run...)
		argv = append(append(run, "--"), argv...)
	}
	if r.Inert {
		env = append(env, "XSCHED_DISABLE=1")
	}
	var t *Tenant
	r.Scheduling, err = Prioritized(func() (err error) {
		t, err = StartTenant(p.Name, argv, env)
		return err
	})
	return t, err
}

// WithContext joins an error with the context's.
func WithContext(ctx context.Context, err error) error {
	if ctx.Err() != nil && !errors.Is(err, ctx.Err()) {
		return errors.Join(err, ctx.Err())
	}
	return err
}

// DeviceEnv returns the environment of a program that uses the virtual GPU without the shim.
func (r *Rig) DeviceEnv() ([]string, error) {
	p := r.virtual()
	var env []string
	for name, value := range p.Env(r.Dir) {
		env = append(env, name+"="+value)
	}
	below, err := embedded.Unpack(p.Kernel)
	if err != nil {
		return nil, err
	}
	library, err := embedded.Unpack(p.Vendor)
	if err != nil {
		return nil, err
	}
	return append(env, "LD_PRELOAD="+below, "LD_LIBRARY_PATH="+filepath.Dir(library)), nil
}
