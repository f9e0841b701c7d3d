// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"time"

	"xsched/internal/control"
	"xsched/internal/control/client"
)

// The faults a run can be given, to show that its proof notices them.
const (
	FaultShimInert        = "shim-inert"        // XSCHED_DISABLE=1 in the tenants
	FaultSuspendNoop      = "suspend-noop"      // the device says yes and does not stop anybody
	FaultTimesliceIgnored = "timeslice-ignored" // the device says yes and keeps its own slices
)

// rig is what the tenants run on: a daemon, and a device if it is a virtual one.
type rig struct {
	exe        string // this program
	dir        string // sockets
	virtual    bool
	platform   string // of the virtual GPU: PlatformNVIDIA or PlatformAMD
	attached   bool   // low tenants get no shim
	inert      bool   // FaultShimInert
	daemon     *client.Client
	device     Device // nil on a real GPU
	tenant     string // path of the load generator
	scheduling string // of the tenants
	serve      *service
	cleanup    []func()
}

// close undoes everything in reverse order.
func (r *rig) close() {
	for _, v := range slices.Backward(r.cleanup) {
		v()
	}
}

// openVirtual starts a device and a daemon of its own in a private folder, so
// that nothing else on the machine is touched.
func openVirtual(ctx context.Context, exe, platform, fault string, serveFlags ...string) (_ *rig, err error) {
	r := &rig{exe: exe, virtual: true, platform: platform, inert: fault == FaultShimInert}
	defer func() {
		if err != nil {
			r.close()
		}
	}()
	if r.dir, err = os.MkdirTemp("", "xsched-bench-"); err != nil {
		return nil, fmt.Errorf("make a private folder: %w", err)
	}
	r.cleanup = append(r.cleanup, func() { _ = os.RemoveAll(r.dir) })
	if err := r.startDevice(ctx, fault); err != nil {
		return nil, err
	}
	serve, err := r.startService(append([]string{"serve", "--virtual", "--platform", platform}, serveFlags...)...)
	if err != nil {
		return nil, err
	}
	r.serve = serve
	if err := r.connect(ctx, filepath.Join(r.dir, control.ControlSocket), serve); err != nil {
		return nil, err
	}
	return r, nil
}

// openRunning uses the daemon that runs in dir, on a real GPU.
func openRunning(ctx context.Context, exe, dir string) (*rig, error) {
	r := &rig{exe: exe, dir: dir}
	if err := r.connect(ctx, filepath.Join(dir, control.ControlSocket), nil); err != nil {
		return nil, err
	}
	v, err := r.daemon.Version(ctx)
	if err != nil {
		return nil, err
	}
	before, err := r.daemon.Mode(ctx)
	if err != nil {
		return nil, err
	}
	if r.virtual = v.Virtual; r.virtual {
		r.platform = v.Platform
		if err := r.dialDevice(r.deviceSocket()); err != nil {
			return nil, err
		}
	}
	// The user's mode comes back whatever happens.
	r.cleanup = append(r.cleanup, func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		_, _ = r.daemon.SetMode(ctx, control.ModeRequest{Mode: before.Mode, Level: before.Level})
	})
	return r, nil
}

// service is a child that runs until it is told to end.
type service struct {
	name string
	cmd  *exec.Cmd
	errs tailBuffer
	done chan struct{}
}

func (r *rig) startService(args ...string) (*service, error) {
	s := &service{name: args[0], done: make(chan struct{})}
	s.cmd = exec.Command(r.exe, args...)
	s.cmd.Env = withEnv("XSCHED_DIR=" + r.dir)
	s.cmd.Stdout, s.cmd.Stderr = &s.errs, &s.errs
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	if err := s.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start xsched %s: %w", args[0], err)
	}
	go func() {
		_ = s.cmd.Wait()
		close(s.done)
	}()
	r.cleanup = append(r.cleanup, s.stop)
	return s, nil
}

func (s *service) stop() {
	_ = s.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-s.done:
	case <-time.After(3 * time.Second):
		_ = s.cmd.Process.Kill()
		<-s.done
	}
}

// connect waits until the daemon answers. own is the service that should, or nil.
func (r *rig) connect(ctx context.Context, socket string, own *service) error {
	r.daemon = client.New(socket)
	r.cleanup = append(r.cleanup, r.daemon.Close)
	return r.until(ctx, own, func() error {
		_, err := r.daemon.Version(ctx)
		return err
	})
}

// until repeats try until it works, the service is gone, or 10 s are over.
func (r *rig) until(ctx context.Context, own *service, try func() error) error {
	limit := time.Now().Add(10 * time.Second)
	for {
		err := try()
		if err == nil || own == nil {
			return err
		}
		select {
		case <-own.done:
			return fmt.Errorf("xsched %s ended at once%s", own.name, own.errs.suffix())
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(20 * time.Millisecond):
		}
		if time.Now().After(limit) {
			return fmt.Errorf("xsched %s does not answer: %w%s", own.name, err, own.errs.suffix())
		}
	}
}

// startTenant starts the i-th tenant as a user would: with `xsched run`.
func (r *rig) startTenant(i int, w Workload) (*tenant, error) {
	// Two kernels in flight keep the GPU busy over the low tenants' own pauses.
	priority, us, depth := 0, w.LowUS, 2
	if i == 0 {
		priority, us, depth = 10, w.HighUS, 1
	}
	argv := []string{r.exe, "run"}
	if r.virtual {
		argv = append(argv, "--virtual")
	}
	argv = append(argv, "--priority", strconv.Itoa(priority), "--",
		r.tenant, "--name", tenantName(i), "--kernel-us", strconv.Itoa(us), "--depth", strconv.Itoa(depth))
	if r.platform == PlatformAMD {
		argv = append(argv, "--api", "hip")
	}
	env := withEnv("XSCHED_DIR=" + r.dir)
	if i > 0 && r.attached {
		for len(argv) > 0 && argv[0] != "--" { // the shim's part
			argv = argv[1:]
		}
		argv = argv[1:]
		more, err := r.deviceEnv()
		if err != nil {
			return nil, err
		}
		env = append(env, more...)
	}
	if r.inert {
		env = append(env, "XSCHED_DISABLE=1")
	}
	var t *tenant
	scheduling, err := hurried(func() (err error) {
		t, err = startTenant(tenantName(i), argv, env)
		return err
	})
	r.scheduling = scheduling
	return t, err
}

// restoreErr joins what went wrong with what the context says.
func restoreErr(ctx context.Context, err error) error {
	if ctx.Err() != nil && !errors.Is(err, ctx.Err()) {
		return errors.Join(err, ctx.Err())
	}
	return err
}
