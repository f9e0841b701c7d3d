// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"xsched/internal/api"
	"xsched/internal/control"
	"xsched/internal/control/client"
	"xsched/internal/daemon"
	"xsched/internal/doctor"
	"xsched/internal/logging"
	"xsched/internal/model"
	"xsched/internal/notify"
	"xsched/internal/policy"
	"xsched/internal/virtual"
)

func (a *app) serveCommand() *cobra.Command {
	var (
		o                daemon.Options
		mode             string
		level            string
		devices          int
		starvation, hold time.Duration
		logLevel         string
		logJSON          bool
		selfTest         string
		limits           []string
		allow            bool
		web              webOptions
		audit            string
	)
	c := &cobra.Command{
		Use:   "serve",
		Short: "Run the scheduling daemon",
		Long: `Run the daemon in the foreground until SIGINT or SIGTERM. On exit it resumes all
suspended programs and restores their timeslices. Root's daemon serves all users
from /run/xsched; a user's daemon serves the user's own programs.

If the daemon dies, programs continue natively and connect to the next daemon.

--http serves the dashboard, the HTTP interface, the metrics and upstream XSched's
tools. The user of the connecting process determines its permissions. With
--virtual the HTTP interface is off by default.

--virtual uses the virtual GPU, a separate process that behaves like a real one,
for machines without a GPU.`,
		Example: `  sudo xsched serve
  xsched serve --virtual
  xsched serve --policy HPF --mode live --log-level debug
  xsched serve --http 127.0.0.1:50001
  xsched serve --http 0.0.0.0:50000 --http-token-file /etc/xsched/token`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			log, flush, err := a.logger(logLevel, logJSON)
			if err != nil {
				return err
			}
			defer flush()
			if o.Mode, o.ModeLevel, err = serveMode(mode, level); err != nil {
				return err
			}
			if o.Quantum < 0 || starvation < 0 || hold < 0 || o.MaxSessions < 0 || o.MaxSessionsPerUID < 0 {
				return usagef("durations and limits can't be negative; omit the flag for the default")
			}
			if o.MaxPriority, err = maxPriorities(limits, allow); err != nil {
				return err
			}
			if o.Hold = hold; hold == 0 && cmd.Flags().Changed("hold") {
				o.Hold = -1 // none; the zero value means the default
			}
			if o.StarvationBound = starvation; starvation == 0 && cmd.Flags().Changed("starvation-bound") {
				o.StarvationBound = -1 // off; the zero value means the default
			}
			if err := checkPlatform(o.Platform); err != nil {
				return err
			}
			if cmd.Flags().Changed("platform") && !o.Virtual {
				return usagef("--platform applies to the virtual GPU; add --virtual")
			}
			if o.Virtual && !cmd.Flags().Changed("http") {
				web.addr = webOff // several daemons may run at once in tests and demos
			}
			o.Dir, o.Version, o.Log = a.dirs()[0], version, log
			if err := setSelfTest(&o, selfTest); err != nil {
				return err
			}
			setAudit(&o, audit)
			ctx, stop := untilSignal(cmd.Context())
			defer stop()
			return a.serve(ctx, o, devices, web, nil)
		},
	}
	f, knobs := c.Flags(), policy.DefaultKnobs()
	f.StringVar(&o.Policy, "policy", "", "initial scheduling policy (default HPF)")
	f.StringVar(&mode, "mode", string(model.ModeLive), "initial mode: off, timeslice, suspend, level or live")
	f.StringVar(&level, "level", "", "preemption level for --mode level: 1, 2 or 3")
	f.DurationVar(&o.Quantum, "quantum", 0, fmt.Sprintf("turn of each program under rotating policies (default %v)", knobs.Quantum))
	f.DurationVar(&hold, "hold", 0, fmt.Sprintf("how long a high-priority program that becomes idle keeps the GPU, for gaps between its kernels; 0 resumes others at once (default %v)", knobs.Hold))
	f.DurationVar(&starvation, "starvation-bound", 0, fmt.Sprintf("longest time that a busy program may go without GPU progress; 0 disables the bound (default %v)", knobs.StarvationBound))
	f.StringArrayVar(&limits, "max-priority", nil, "limit the rank of a user of root's daemon, whatever hint it follows from: `[USER=]N`; without USER for all others (default 0)")
	f.BoolVar(&allow, "allow-priority", false, "the same as --max-priority 255")
	f.IntVar(&o.MaxSessions, "max-sessions", 0, "maximum number of connected programs (default 4096)")
	f.IntVar(&o.MaxSessionsPerUID, "max-sessions-per-user", 0, "maximum number of connected programs per user (default 1024)")
	f.StringVar(&o.GuardianCgroup, "guardian-cgroup", "", "`FOLDER` of a cgroup for the guardian, unless its service runs (default the daemon's cgroup)")
	f.BoolVar(&o.Virtual, "virtual", false, "use the virtual GPU; start it if none is running")
	f.IntVar(&devices, "devices", 0, "with --virtual: number of virtual GPUs (default 2)")
	f.StringVar(&o.Platform, "platform", virtual.Default().Name, "with --virtual: emulated driver, "+platformNames())
	f.StringVar(&o.Record, "record", "", "record all scheduling events to `FILE` for xsched replay (at most 4 files of 64 MB)")
	f.StringVar(&audit, "audit", auditAuto, "append changes, their authors and faults to `FILE` (at most 4 files of 8 MB); auto: "+auditDefault+" for root's daemon in /run/xsched, else off")
	f.StringVar(&selfTest, "self-test", selfTestAuto, "test preemption on idle GPUs in the background: auto (real GPUs only), on or off")
	web.flags(c)
	logFlags(c, &logLevel, &logJSON)
	_ = c.RegisterFlagCompletionFunc("policy", completePolicies)
	_ = c.RegisterFlagCompletionFunc("mode", cobra.FixedCompletions(modeNames(), cobra.ShellCompDirectiveNoFileComp))
	return c
}

// serve runs a daemon with its servers until ctx ends or a server fails. It calls ready, if not
// nil, once clients can connect.
func (a *app) serve(ctx context.Context, o daemon.Options, devices int, web webOptions, ready func(control.Control)) error {
	manager := notify.FromEnvironment()
	if o.Private {
		manager = &notify.Manager{} // the program's service reports for itself
	}
	if running, err := client.New(filepath.Join(o.Dir, control.ControlSocket)).Version(ctx); err == nil {
		return alreadyRuns(o.Dir, running.PID)
	}
	http, err := web.listen(o.Log)
	if err != nil {
		return err
	}
	defer http.close()
	if o.Virtual {
		if err := control.PrepareDir(o.Dir, os.Geteuid()); err != nil {
			return err
		}
		p, err := findPlatform(o.Platform)
		if err != nil {
			return err
		}
		if o.VGPUSocket == "" {
			o.VGPUSocket = p.Socket(o.Dir)
		}
		device, err := startDevice(ctx, o.VGPUSocket, p, devices)
		if err != nil {
			return err
		}
		defer device.stop()
	}
	d, err := daemon.Start(o)
	if err != nil {
		return err
	}
	defer d.Close()
	l, err := d.ListenControl()
	if err != nil {
		return err
	}
	tenants, err := d.ListenTenants()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	served := make(chan error, 1)
	go func() {
		defer cancel()
		served <- http.serveBeside(ctx, d.Control(), func(ctx context.Context) error { return serveSockets(ctx, d.Control(), o.Log, l, tenants) })
	}()
	if ready != nil {
		ready(d)
	}
	if !o.Virtual {
		go a.logDrivers(ctx, o.Log) // a device node may block
	}
	manager.Ready()
	go manager.Feed(ctx, d.Heartbeat)
	o.Log.Info("ready", "dir", o.Dir, "virtual", o.Virtual, "version", o.Version, "http", http.addr())
	<-ctx.Done()
	manager.Stopping()
	d.Close() // GPUs first; requests in progress may take longer
	select {
	case err = <-served:
	case <-time.After(2 * time.Second):
	}
	if err != nil && !errors.Is(err, context.Canceled) {
		return err
	}
	o.Log.Info("stopped")
	return nil
}

// logDrivers logs what limits this machine's drivers, with the doctor's remedies.
func (a *app) logDrivers(ctx context.Context, log *slog.Logger) {
	for _, c := range doctor.Drivers(a.machine(ctx)) {
		level := slog.LevelDebug
		if c.Status == doctor.Missing || c.Status == doctor.Limited {
			level = slog.LevelWarn
		}
		log.Log(ctx, level, "driver check", "check", c.Name, "status", string(c.Status), "detail", c.Detail, "remedy", c.Remedy)
	}
}

// serveSockets serves the control interface on several sockets, until one fails or ctx ends.
func serveSockets(ctx context.Context, d control.Control, log *slog.Logger, listeners ...net.Listener) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan error, len(listeners))
	for _, l := range listeners {
		go func() {
			defer cancel()
			ended <- api.Serve(ctx, l, d, log)
		}()
	}
	var all error
	for range listeners {
		all = errors.Join(all, <-ended)
	}
	return all
}

func alreadyRuns(dir string, pid int) error {
	return &control.Error{
		Kind: control.ErrUnavailable, Cause: fmt.Sprintf("a daemon (PID %d) is already running in %s", pid, dir),
		Remedy: "stop it, or use another --dir",
	}
}

// serveMode combines --mode and --level.
func serveMode(mode, level string) (model.Mode, model.Level, error) {
	if mode == string(model.ModeLevel) && level == "" {
		return "", 0, usagef("--mode level needs a level; add --level 1, 2 or 3")
	}
	args := []string{mode}
	if level != "" {
		args = append(args, level)
	}
	request, err := parseMode(args)
	return model.Mode(request.Mode), model.Level(request.Level), err
}

func logFlags(c *cobra.Command, level *string, asJSON *bool) {
	c.Flags().StringVar(level, "log-level", "info", "log level: debug, info, warn or error")
	c.Flags().BoolVar(asJSON, "log-json", false, "write the log as JSON")
}

// flushTime bounds how long the end of the daemon waits for a reader of its log.
const flushTime = 500 * time.Millisecond

// logger returns a logger to standard error, and a function that writes its last lines.
func (a *app) logger(level string, asJSON bool) (_ *slog.Logger, flush func(), _ error) {
	var threshold slog.Level
	if err := threshold.UnmarshalText([]byte(level)); err != nil {
		return nil, nil, usagef("unknown log level %q; use debug, info, warn or error", level)
	}
	options := &slog.HandlerOptions{Level: threshold}
	log := logging.New(a.stderr, func(w io.Writer) slog.Handler {
		if asJSON {
			return slog.NewJSONHandler(w, options)
		}
		return slog.NewTextHandler(w, options)
	})
	return slog.New(log), func() { log.Close(flushTime) }, nil
}
