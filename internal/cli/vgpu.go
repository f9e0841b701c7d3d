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
	"xsched/internal/virtual"
	vdevice "xsched/internal/virtual/device"
)

func (a *app) vgpuCommand() *cobra.Command {
	var (
		o        virtual.Options
		idle     time.Duration
		logLevel string
		logJSON  bool
		ready    int
		platform string
	)
	c := &cobra.Command{
		Use:   "vgpu",
		Short: "Run the virtual GPU, a device process for machines without a GPU",
		Long: `The virtual GPU is a process of its own, so that no program that uses it can
harm it. ` + "`xsched serve --virtual`" + ` starts it by itself; start it by hand to keep
it, and its timeline, over restarts of the daemon.

A time on the virtual GPU is device time, not the CPU's: kernels take what they
say they take, and really compute a checksum.

--platform selects the kernel driver that it implements. What that driver shows in
sysfs appears below --root, where ` + "`xsched queues --root`" + ` reads it.`,
		Example: `  xsched vgpu --devices 1
  xsched vgpu --socket /tmp/gpu.sock --exit-when-idle 10s`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			tell := newReadiness(ready)
			err := func() error {
				log, err := a.logger(logLevel, logJSON)
				if err != nil {
					return err
				}
				if o.Devices < 0 || o.Devices > virtual.MaxDevices {
					return usagef("%d devices are out of range; use 1 to %d", o.Devices, virtual.MaxDevices)
				}
				if idle < 0 {
					return usagef("--exit-when-idle can't be negative; 0 stays")
				}
				p, err := findPlatform(platform)
				if err != nil {
					return err
				}
				if o.Socket == "" {
					dir := a.dirs()[0]
					if err := control.PrepareDir(dir, os.Geteuid()); err != nil {
						return err
					}
					o.Socket = p.Socket(dir)
				}
				o.Logger = log
				ctx, stop := untilSignal(cmd.Context())
				defer stop()
				if idle > 0 {
					go func() {
						exitWhenIdle(ctx, p.Watch(o.Socket), idle)
						stop()
					}()
				}
				o.Ready = func() { tell.done(nil) }
				return p.Serve(ctx, o)
			}()
			tell.done(err)
			return err
		},
	}
	f := c.Flags()
	f.StringVar(&o.Socket, "socket", "", "path of the socket (default vgpu.sock in --dir)")
	f.IntVar(&o.Devices, "devices", 0, "number of GPUs (default 2)")
	f.StringVar(&platform, "platform", virtual.Default().Name, "driver that it implements: "+platformNames())
	f.StringVar(&o.Root, "root", "", "folder for what the driver shows in sysfs (default beside the socket)")
	f.DurationVar(&idle, "exit-when-idle", 0, "end when for this long no program and no daemon in the socket's folder was there (0: stay)")
	f.IntVar(&ready, "ready-fd", -1, "say on this file descriptor when clients can connect")
	_ = f.MarkHidden("ready-fd")
	logFlags(c, &logLevel, &logJSON)
	return c
}

// exitWhenIdle returns when nobody has needed the device for a while: neither
// a program with an open file nor a daemon beside it. The daemon that started
// the device may be long gone, and another one may have taken its place.
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

// openFiles is how many programs use the device. None if it can't be asked: a
// socket whose folder was removed can't be found by anybody else either.
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

// accepts says whether somebody listens on a stream socket, even if he is stopped.
func accepts(path string) bool {
	conn, err := net.DialTimeout("unix", path, time.Second)
	if err != nil {
		timeout, ok := errors.AsType[net.Error](err)
		return ok && timeout.Timeout()
	}
	_ = conn.Close()
	return true
}
