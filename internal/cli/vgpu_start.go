// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"

	"xsched/internal/virtual"
	vdevice "xsched/internal/virtual/device"
)

// idleLimit is how long the device outlives its last user after the daemon was killed. It leaves
// time to restart the daemon.
const idleLimit = 30 * time.Second

// startLimit bounds the start of the device process.
const startLimit = 10 * time.Second

// vgpuAnswers reports whether a virtual GPU serves this socket.
func vgpuAnswers(socket string) bool {
	client, err := vdevice.Dial(socket)
	if err != nil {
		return false
	}
	defer client.Close()
	_, err = client.Stats()
	return err == nil
}

// device is the virtual GPU of a daemon; cmd is nil if the daemon did not start it.
type device struct {
	cmd    *exec.Cmd
	exited chan struct{}
}

// startDevice ensures that a virtual GPU serves the socket. It starts the device in a session of
// its own, so that the device survives a kill -9 of the daemon, as a real GPU does. The device
// exits when it is idle.
func startDevice(ctx context.Context, socket string, p virtual.Platform, gpus virtual.Options) (*device, error) {
	if vgpuAnswers(p.Watch(socket)) {
		return &device{}, nil
	}
	exe, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find this program: %w", err)
	}
	reader, writer, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("start virtual GPU: %w", err)
	}
	defer reader.Close()
	args := []string{"vgpu", "--socket", socket, "--exit-when-idle", idleLimit.String(), "--ready-fd", "3", "--platform", p.Name}
	if gpus.Devices != 0 {
		args = append(args, "--devices", strconv.Itoa(gpus.Devices))
	}
	if gpus.Memory != 0 {
		args = append(args, "--device-memory", strconv.FormatUint(gpus.Memory, 10))
	}
	cmd := exec.Command(exe, args...)
	cmd.ExtraFiles = []*os.File{writer}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	// Standard output and error are /dev/null, so that a reader of the daemon's output does not
	// wait for the device.
	err = cmd.Start()
	_ = writer.Close()
	if err != nil {
		return nil, fmt.Errorf("start virtual GPU: %w", err)
	}
	d := &device{cmd: cmd, exited: make(chan struct{})}
	go func() {
		_ = cmd.Wait()
		close(d.exited)
	}()
	if err := awaitReady(ctx, reader); err != nil {
		d.stop()
		return nil, fmt.Errorf("start virtual GPU: %w", err)
	}
	return d, nil
}

// awaitReady waits for the child's readiness report.
func awaitReady(ctx context.Context, from *os.File) error {
	_ = from.SetReadDeadline(time.Now().Add(startLimit))
	defer context.AfterFunc(ctx, func() { _ = from.SetReadDeadline(time.Now()) })()
	text, err := io.ReadAll(io.LimitReader(from, 4096))
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case err != nil:
		return fmt.Errorf("no answer within %v; try again on a less busy machine", startLimit)
	case string(text) == readyWord:
		return nil
	case len(text) == 0:
		return errors.New("the process exited immediately; run `xsched vgpu` to see why")
	}
	return errors.New(strings.TrimSpace(string(text)))
}

// stop ends the device if the daemon started it.
func (d *device) stop() {
	if d.cmd == nil {
		return
	}
	_ = d.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-d.exited:
	case <-time.After(3 * time.Second):
		_ = d.cmd.Process.Kill()
		<-d.exited
	}
}

const readyWord = "ready\n"

// readiness reports the result of the start to the parent, once.
type readiness struct{ to *os.File }

func newReadiness(fd int) *readiness {
	if fd < 3 {
		return &readiness{}
	}
	syscall.CloseOnExec(fd)
	return &readiness{os.NewFile(uintptr(fd), "ready")}
}

func (r *readiness) done(err error) {
	if r.to == nil {
		return
	}
	text := readyWord
	if err != nil {
		text = oneLine(err.Error())
	}
	_, _ = r.to.WriteString(text) // the parent may have exited
	_ = r.to.Close()
	r.to = nil
}
