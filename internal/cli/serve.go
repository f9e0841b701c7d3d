// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"xsched/internal/api"
	"xsched/internal/control"
	"xsched/internal/control/client"
	"xsched/internal/daemon"
	"xsched/internal/model"
	"xsched/internal/virtual"
)

func (a *app) serveCommand() *cobra.Command {
	var (
		o          daemon.Options
		mode       string
		level      string
		devices    int
		starvation time.Duration
		logLevel   string
		logJSON    bool
		selfTest   string
		web        webOptions
	)
	c := &cobra.Command{
		Use:   "serve",
		Short: "Run the daemon that decides who has the GPU",
		Long: `Runs in the foreground until SIGINT or SIGTERM; then resumes every program it
had suspended and gives every timeslice back. Root's daemon serves all users in
/run/xsched; yours serves your own programs.

If the daemon dies, however it dies, programs run on natively and join the next
one by themselves.

XSched's own tools, metrics and the HTTP interface are at --http; who may change
what is decided by the user at the other end. With --virtual it is off unless
asked for.

--virtual uses the virtual GPU, a separate process with the behaviour of a real
one, to try everything on a machine that has none.`,
		Example: `  sudo xsched serve
  xsched serve --virtual
  xsched serve --policy HPF --mode live --log-level debug
  xsched serve --http 127.0.0.1:50001
  xsched serve --http 0.0.0.0:50000 --http-token-file /etc/xsched/token`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			log, err := a.logger(logLevel, logJSON)
			if err != nil {
				return err
			}
			if o.Mode, o.ModeLevel, err = serveMode(mode, level); err != nil {
				return err
			}
			if o.Quantum < 0 || starvation < 0 || o.MaxSessions < 0 || o.MaxSessionsPerUID < 0 {
				return usagef("times and limits can't be negative; leave the flag out for the default")
			}
			if o.StarvationBound = starvation; starvation == 0 && cmd.Flags().Changed("starvation-bound") {
				o.StarvationBound = -1 // off: the daemon's own zero is its default
			}
			if err := checkPlatform(o.Platform); err != nil {
				return err
			}
			if cmd.Flags().Changed("platform") && !o.Virtual {
				return usagef("--platform is the virtual GPU's; add --virtual")
			}
			if o.Virtual && !cmd.Flags().Changed("http") {
				web.addr = webOff // several may run at once, in tests and demos
			}
			o.Dir, o.Version, o.Log = a.dirs()[0], version, log
			if err := setSelfTest(&o, selfTest); err != nil {
				return err
			}
			ctx, stop := untilSignal(cmd.Context())
			defer stop()
			return a.serve(ctx, o, devices, web, nil)
		},
	}
	f := c.Flags()
	f.StringVar(&o.Policy, "policy", "", "policy to start with (default HPF)")
	f.StringVar(&mode, "mode", string(model.ModeLive), "mode to start with: off, timeslice, suspend, level or live")
	f.StringVar(&level, "level", "", "with --mode level: 1, 2 or 3")
	f.DurationVar(&o.Quantum, "quantum", 0, "turn of each program where a policy rotates (default the engine's)")
	f.DurationVar(&starvation, "starvation-bound", 0, "longest time a program waits without progress on the GPU; 0 turns it off (default the engine's)")
	f.BoolVar(&o.AllowPriority, "allow-priority", false, "let users of root's daemon raise their programs above priority 0")
	f.IntVar(&o.MaxSessions, "max-sessions", 0, "most programs at once (default 4096)")
	f.IntVar(&o.MaxSessionsPerUID, "max-sessions-per-user", 0, "most programs of one user (default 1024)")
	f.BoolVar(&o.Virtual, "virtual", false, "use the virtual GPU; starts it unless one answers")
	f.IntVar(&devices, "devices", 0, "with --virtual: number of virtual GPUs to start (default 2)")
	f.StringVar(&o.Platform, "platform", virtual.Default().Name, "with --virtual: driver that the virtual GPU implements, "+platformNames())
	f.StringVar(&o.Record, "record", "", "file for a recording of what happens, for `xsched replay` (at most 4 files of 64 MB)")
	f.StringVar(&selfTest, "self-test", selfTestAuto, "test preemption on idle GPUs in the background: auto (real GPUs only), on or off")
	web.flags(c)
	logFlags(c, &logLevel, &logJSON)
	_ = c.RegisterFlagCompletionFunc("mode", cobra.FixedCompletions(modeNames(), cobra.ShellCompDirectiveNoFileComp))
	return c
}

// serve runs a daemon with its servers until ctx ends or a server fails. It calls ready, if not
// nil, once clients can connect.
func (a *app) serve(ctx context.Context, o daemon.Options, devices int, web webOptions, ready func(control.Control)) error {
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
		o.VGPUSocket = p.Socket(o.Dir)
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
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	served := make(chan error, 1)
	go func() {
		defer cancel()
		served <- http.serveBeside(ctx, d, func(ctx context.Context) error { return api.Serve(ctx, l, d, o.Log) })
	}()
	if ready != nil {
		ready(d)
	}
	o.Log.Info("ready", "dir", o.Dir, "virtual", o.Virtual, "version", o.Version, "http", http.addr())
	<-ctx.Done()
	d.Close() // first the GPUs; requests under way may take longer
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

func alreadyRuns(dir string, pid int) error {
	return &control.Error{
		Kind: control.ErrUnavailable, Cause: fmt.Sprintf("a daemon (pid %d) already runs in %s", pid, dir),
		Remedy: "stop it, or use another --dir",
	}
}

// serveMode reads --mode and --level together.
func serveMode(mode, level string) (model.Mode, model.Level, error) {
	args := []string{mode}
	if level != "" {
		args = append(args, level)
	}
	request, err := parseMode(args)
	return model.Mode(request.Mode), model.Level(request.Level), err
}

func logFlags(c *cobra.Command, level *string, asJSON *bool) {
	c.Flags().StringVar(level, "log-level", "info", "debug, info, warn or error")
	c.Flags().BoolVar(asJSON, "log-json", false, "log in JSON")
}

// logger writes to standard error.
func (a *app) logger(level string, asJSON bool) (*slog.Logger, error) {
	var threshold slog.Level
	if err := threshold.UnmarshalText([]byte(level)); err != nil {
		return nil, usagef("log level %q is not known; use debug, info, warn or error", level)
	}
	options := &slog.HandlerOptions{Level: threshold}
	if asJSON {
		return slog.New(slog.NewJSONHandler(a.stderr, options)), nil
	}
	return slog.New(slog.NewTextHandler(a.stderr, options)), nil
}
