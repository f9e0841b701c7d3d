// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"xsched/internal/control"
	"xsched/internal/model"
	"xsched/internal/virtual"
	vdevice "xsched/internal/virtual/device"
)

// virtualGPU is the command vgpu.
type virtualGPU struct {
	app      *app
	o        virtual.Options
	idle     time.Duration
	logLevel string
	logJSON  bool
	ready    int
	platform string
}

func vgpuCommand(a *app) *cobra.Command {
	v := &virtualGPU{app: a}
	c := &cobra.Command{
		Use:   "vgpu",
		Short: "Run the virtual GPU",
		Long: `Run the virtual GPU, a device process for machines without a GPU. Programs that
use it can't disturb it. ` + "`xsched serve --virtual`" + ` starts it automatically. Start it
with this command to keep it, and its timeline, across restarts of the daemon.

Kernels take their stated device time, not CPU time, and compute a checksum.

--platform selects the emulated kernel driver. Its sysfs tree appears below --root, where
` + "`xsched queues --root DIR`" + ` reads it.`,
		Example: `  xsched vgpu --devices 1
  xsched vgpu --socket /tmp/gpu.sock --exit-when-idle 10s`,
		Args: noArgs,
		RunE: v.run,
	}
	v.flags(c)
	return c
}

func (v *virtualGPU) flags(c *cobra.Command) {
	f := c.Flags()
	f.StringVar(&v.o.Socket, "socket", "", "listen on `PATH` (default in --dir)")
	f.IntVar(&v.o.Devices, "devices", 0, "number of GPUs (default 2)")
	f.Var((*bytesFlag)(&v.o.Memory), "device-memory", "memory of each GPU (default that of the platform)")
	f.StringVar(&v.platform, "platform", virtual.Default().Name, "emulated driver: "+platformNames())
	f.StringVar(&v.o.Driver, "driver", "", "variant of the emulated driver, `WORDS` separated by commas; an unknown word lists them")
	f.StringVar(&v.o.Root, "root", "", "put the driver's sysfs tree into `DIR` (default next to the socket)")
	f.DurationVar(&v.idle, "exit-when-idle", 0, "exit after this time without a program or daemon (0: never)")
	f.IntVar(&v.ready, "ready-fd", -1, "file descriptor to report readiness on")
	_ = f.MarkHidden("ready-fd")
	logFlags(c, &v.logLevel, &v.logJSON)
}

func (v *virtualGPU) run(cmd *cobra.Command, _ []string) error {
	report := newReadiness(v.ready)
	err := func() error {
		log, flush, err := v.app.logger(v.logLevel, v.logJSON)
		if err != nil {
			return err
		}
		defer flush()
		if v.o.Devices < 0 || v.o.Devices > virtual.MaxDevices {
			return usagef("--devices %d is out of range; use 1 to %d", v.o.Devices, virtual.MaxDevices)
		}
		if v.o.Memory > virtual.MaxMemory {
			return usagef("--device-memory %v is out of range; use up to %v", model.Bytes(v.o.Memory), model.Bytes(virtual.MaxMemory))
		}
		if v.idle < 0 {
			return usagef("--exit-when-idle can't be negative; 0 disables it")
		}
		p, err := findPlatform(v.platform)
		if err != nil {
			return err
		}
		if v.o.Socket == "" {
			dir := v.app.dirs()[0]
			if err := control.PrepareDir(dir, os.Geteuid()); err != nil {
				return err
			}
			v.o.Socket = p.Socket(dir)
		}
		v.o.Logger = log
		ctx, stop := untilSignal(cmd.Context())
		defer stop()
		if v.idle > 0 {
			go func() {
				exitWhenIdle(ctx, p.Watch(v.o.Socket), v.idle)
				stop()
			}()
		}
		v.o.Ready = func() { report.done(nil) }
		return p.Serve(ctx, v.o)
	}()
	report.done(err)
	return err
}

// exitWhenIdle returns after limit without a program that has the device open and without a
// daemon in the same directory. That daemon need not be the one that started the device.
func exitWhenIdle(ctx context.Context, socket string, limit time.Duration) {
	daemonSocket := filepath.Join(filepath.Dir(socket), control.ControlSocket)
	tick := time.NewTicker(max(limit/8, 50*time.Millisecond))
	defer tick.Stop()
	for last := time.Now(); time.Since(last) < limit; {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if openFiles(socket) > 0 || accepts(daemonSocket) {
			last = time.Now()
		}
	}
}

// openFiles is the number of open files on the device, or 0 if it does not answer: nobody can
// reach a socket in a removed directory.
func openFiles(socket string) int {
	client, err := vdevice.Dial(socket)
	if err != nil {
		return 0
	}
	defer client.Close()
	stats, err := client.Stats()
	if err != nil {
		return 0
	}
	return stats.Files
}

// accepts reports whether a process listens on a stream socket, even a stopped one.
func accepts(path string) bool {
	conn, err := net.DialTimeout("unix", path, time.Second)
	if err != nil {
		timeout, ok := errors.AsType[net.Error](err)
		return ok && timeout.Timeout()
	}
	_ = conn.Close()
	return true
}

// bytesFlag is an amount of memory.
type bytesFlag uint64

func (b *bytesFlag) String() string {
	if *b == 0 {
		return ""
	}
	return model.Bytes(*b).String()
}
func (b *bytesFlag) Type() string { return "size" }
func (b *bytesFlag) Set(text string) error {
	n, err := model.ParseBytes(text)
	*b = bytesFlag(n)
	return err
}
