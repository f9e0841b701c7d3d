// SPDX-License-Identifier: Apache-2.0

package modes

import (
	"bufio"
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

	"golang.org/x/sys/unix"

	"xsched/internal/bench"
	"xsched/internal/control"
	"xsched/internal/control/client"
	"xsched/internal/embedded"
)

// family is one program of two processes, a latency-critical and a best-effort one. The flags of
// `xsched run` decide which scheduler it has.
type family struct {
	mode    string
	cmd     *exec.Cmd
	errs    bench.Tail
	high    *bench.Tenant
	low     *bench.Tenant
	daemon  *client.Client // its private one (LCL), or the global one
	device  bench.Device
	gone    chan struct{} // closed when it has ended; nil: not started
	ended   error
	cleanup []func()
}

// familyScript starts both, prints their pids and returns their exit status. $0 is the tenant; each
// process inherits only its own descriptors.
const familyScript = `
XSCHED_AUTO_XQUEUE_PRIORITY=10 "$0" --name high --kernel-us "$1" $3 <&3 >&4 3<&- 4>&- 5<&- 6>&- 8<&- & a=$!
XSCHED_AUTO_XQUEUE_PRIORITY=0 "$0" --name low --kernel-us "$2" --depth 2 $4 <&5 >&6 3<&- 4>&- 5<&- 6>&- 7<&- & b=$!
exec 3<&- 4>&- 5<&- 6>&- 7<&- 8<&-
echo "$a $b"
wait $a; x=$?; wait $b; y=$?
exit $((x | y))`

// start runs the program in one of the modes.
func (o *Options) start(ctx context.Context, r *bench.Rig, mode string) (_ *family, err error) {
	f := &family{mode: mode, daemon: r.Daemon, device: r.Device}
	defer func() {
		if err != nil {
			f.kill()
		}
	}()
	tenantPath, err := embedded.Unpack(embedded.Tenant)
	if err != nil {
		return nil, fmt.Errorf("unpack the tenant: %w", err)
	}
	argv := []string{"run", "--virtual"}
	env := bench.WithEnv("XSCHED_DIR=" + r.Dir)
	urgent, background := "", ""
	switch mode {
	case SchedulerNative:
		env = append(env, "XSCHED_DISABLE=1")
	case SchedulerGLB:
		env = append(env, "XSCHED_SCHEDULER=GLB")
	case SchedulerLCL:
		argv = append(argv, "--local", "--policy", o.Policy)
		env = append(env, "XDG_RUNTIME_DIR="+r.Dir)
	case SchedulerAPP:
		env = append(env, "XSCHED_SCHEDULER=APP")
		urgent, background = "--urgent 7", "--background 8"
	}
	if r.Inert {
		env = append(env, "XSCHED_DISABLE=1")
	}
	argv = append(argv, "--", "sh", "-c", familyScript, tenantPath, strconv.Itoa(o.HighUS), strconv.Itoa(o.LowUS), urgent, background)
	f.cmd = exec.Command(r.Exe, argv...)
	f.cmd.Env = env
	f.cmd.Stderr = &f.errs
	f.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	// 3 to 6 are both tenants' input and output, 7 and 8 the socket between them.
	outs, err := f.connect()
	if err != nil {
		return nil, err
	}
	said, err := f.cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("make a pipe: %w", err)
	}
	r.Scheduling, err = bench.Prioritized(f.cmd.Start)
	for _, file := range f.cmd.ExtraFiles {
		_ = file.Close()
	}
	if err != nil {
		return nil, fmt.Errorf("start the program: %w", err)
	}
	f.gone = make(chan struct{})
	for i, t := range []*bench.Tenant{f.high, f.low} {
		go t.Read(outs[i])
	}
	line, err := bufio.NewReader(said).ReadString('\n')
	go func() {
		f.ended = f.cmd.Wait()
		close(f.gone)
	}()
	if _, scanned := fmt.Sscanf(line, "%d %d", &f.high.ID, &f.low.ID); err != nil || scanned != nil {
		return nil, fmt.Errorf("start the program in mode %s: it did not start%s", mode, f.errs.Suffix())
	}
	for _, t := range []*bench.Tenant{f.high, f.low} {
		if err := t.Await(ctx, "R", 30*time.Second); err != nil {
			if mode == SchedulerAPP && ctx.Err() == nil { // its error message names the missing part
				return nil, fmt.Errorf("%w (%s): shim intercepts: the program can't schedule itself%s", bench.ErrProof, mode, f.errs.Suffix())
			}
			return nil, fmt.Errorf("%w%s", err, f.errs.Suffix())
		}
	}
	if mode == SchedulerLCL {
		return f, f.findPrivate(r)
	}
	return f, nil
}

// connect makes the pipes and the socket, and returns where the tenants' output comes.
func (f *family) connect() ([]*os.File, error) {
	var outs []*os.File
	for _, t := range []**bench.Tenant{&f.high, &f.low} {
		inR, inW, err := os.Pipe()
		if err != nil {
			return nil, fmt.Errorf("make a pipe: %w", err)
		}
		outR, outW, err := os.Pipe()
		if err != nil {
			return nil, fmt.Errorf("make a pipe: %w", err)
		}
		*t = &bench.Tenant{In: inW, Events: make(chan string, 16), Done: make(chan struct{})}
		f.cmd.ExtraFiles = append(f.cmd.ExtraFiles, inR, outW)
		outs = append(outs, outR)
	}
	f.high.Name, f.low.Name = "high", "low"
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("make a socket: %w", err)
	}
	f.cmd.ExtraFiles = append(f.cmd.ExtraFiles, os.NewFile(uintptr(pair[0]), "urgent"), os.NewFile(uintptr(pair[1]), "background"))
	return outs, nil
}

// findPrivate connects to the private daemon and its device.
func (f *family) findPrivate(r *bench.Rig) error {
	found, err := filepath.Glob(filepath.Join(r.Dir, "xsched-local-*"))
	if err != nil || len(found) != 1 {
		return fmt.Errorf("find the private scheduler: %d folders", len(found))
	}
	own := &bench.Rig{Dir: found[0], Platform: r.Platform, Virtual: true}
	if err := own.DialDevice(own.DeviceSocket()); err != nil {
		return err
	}
	f.daemon, f.device = client.New(filepath.Join(found[0], control.ControlSocket)), own.Device
	f.cleanup = append(f.cleanup, own.Close, f.daemon.Close)
	return nil
}

// quit lets the program end and returns its exit status.
func (f *family) quit(limit time.Duration) error {
	defer f.kill()
	errs := []error{f.high.Quit(limit), f.low.Quit(limit)}
	select {
	case <-f.gone:
		if f.ended != nil {
			errs = append(errs, fmt.Errorf("the program ended with %w%s", f.ended, f.errs.Suffix()))
		}
	case <-time.After(limit):
		errs = append(errs, fmt.Errorf("the program did not end within %v", limit))
	}
	return errors.Join(errs...)
}

// kill ends whatever is left of it.
func (f *family) kill() {
	for _, undo := range slices.Backward(f.cleanup) {
		undo()
	}
	f.cleanup = nil
	if f.gone == nil {
		return
	}
	select {
	case <-f.gone:
	default: // the shell lives as long as both tenants
		_ = syscall.Kill(-f.cmd.Process.Pid, syscall.SIGKILL)
		<-f.gone
	}
}
