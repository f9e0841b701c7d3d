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

// idleLimit is how long a device that we started outlives its last user when
// the daemon was killed: long enough to restart it by hand.
const idleLimit = 30 * time.Second

// startLimit bounds the start of the device process.
const startLimit = 10 * time.Second

// vgpuAnswers says whether a virtual GPU serves this socket.
func vgpuAnswers(socket string) bool {
	client, err := vdevice.Dial(socket)
	if err != nil {
		return false
	}
	defer client.Close()
	_, err = client.Stats()
	return err == nil
}

// device is the virtual GPU that a daemon uses; cmd is nil if it was there before.
type device struct {
	cmd    *exec.Cmd
	exited chan struct{}
}

// startDevice makes sure that a virtual GPU serves the socket. One that it
// starts is in a session of its own: it survives a kill -9 of the daemon, as a
// real GPU does, and ends by itself when nobody needs it any more.
func startDevice(ctx context.Context, socket string, p virtual.Platform, devices int) (*device, error) {
	if vgpuAnswers(p.Watch(socket)) {
		return &device{}, nil
	}
	exe, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find this program: %w", err)
	}
	reader, writer, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("start virtual gpu: %w", err)
	}
	defer reader.Close()
	args := []string{"vgpu", "--socket", socket, "--exit-when-idle", idleLimit.String(), "--ready-fd", "3", "--platform", p.Name}
	if devices != 0 {
		args = append(args, "--devices", strconv.Itoa(devices))
	}
	cmd := exec.Command(exe, args...)
	cmd.ExtraFiles = []*os.File{writer}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	// Standard output and error are /dev/null: whoever waits for the end of our
	// output must not wait for the device's.
	err = cmd.Start()
	_ = writer.Close()
	if err != nil {
		return nil, fmt.Errorf("start virtual gpu: %w", err)
	}
	d := &device{cmd: cmd, exited: make(chan struct{})}
	go func() {
		_ = cmd.Wait()
		close(d.exited)
	}()
	if err := awaitReady(ctx, reader); err != nil {
		d.stop()
		return nil, fmt.Errorf("start virtual gpu: %w", err)
	}
	return d, nil
}

// awaitReady reads what readiness wrote.
func awaitReady(ctx context.Context, from *os.File) error {
	_ = from.SetReadDeadline(time.Now().Add(startLimit))
	defer context.AfterFunc(ctx, func() { _ = from.SetReadDeadline(time.Now()) })()
	text, err := io.ReadAll(io.LimitReader(from, 4096))
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case err != nil:
		return fmt.Errorf("it did not answer within %v; try again, the machine is busy", startLimit)
	case string(text) == readyWord:
		return nil
	case len(text) == 0:
		return errors.New("it ended at once; run `xsched vgpu` to see why")
	}
	return errors.New(strings.TrimSpace(string(text)))
}

// stop ends the device, if it is ours.
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

// readiness is the other end: it tells the parent once how the start went.
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
	_, _ = r.to.WriteString(text) // the parent may be gone
	_ = r.to.Close()
	r.to = nil
}
