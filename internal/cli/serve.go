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
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"xsched/internal/api"
	"xsched/internal/budget"
	"xsched/internal/control"
	"xsched/internal/control/client"
	"xsched/internal/daemon"
	"xsched/internal/doctor"
	"xsched/internal/driver"
	"xsched/internal/health"
	"xsched/internal/identity"
	"xsched/internal/logging"
	"xsched/internal/model"
	"xsched/internal/notify"
	"xsched/internal/virtual"
)

func serveCommand(a *app) *cobra.Command {
	var flags serveFlags
	c := &cobra.Command{
		Use:   "serve",
		Short: "Run the scheduling daemon",
		Long: `Run the daemon in the foreground until SIGINT or SIGTERM. On exit it resumes all
suspended programs and restores their timeslices. Root's daemon serves all users
from /run/xsched; a user's daemon serves the user's own programs.

If the daemon dies, programs continue natively and connect to the next daemon.

Root's daemon reads /etc/xsched/config.yaml, if it exists; --config names another
file. Flags take precedence. SIGHUP and ` + "`xsched config reload`" + ` read the file
again. Policy, mode, hints and suspensions set at run time survive a restart,
unless --no-state is given.

--http serves the dashboard, the HTTP interface, the metrics and upstream XSched's
tools. The user of the connecting process determines its permissions. With
--virtual the HTTP interface is off by default.

--virtual uses the virtual GPU, a separate process that behaves like a real one,
for machines without a GPU.`,
		Example: `  sudo xsched serve
  xsched serve --virtual
  xsched serve --policy HPF --mode live --log-level debug
  xsched serve --config /etc/xsched/config.yaml
  xsched serve --http 127.0.0.1:50001
  xsched serve --http 0.0.0.0:50000 --http-token-file /etc/xsched/token`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return serveConfigured(cmd, a, flags) },
	}
	flags.register(c)
	_ = c.RegisterFlagCompletionFunc("policy", completePolicies)
	_ = c.RegisterFlagCompletionFunc("mode", cobra.FixedCompletions(modeNames(), cobra.ShellCompDirectiveNoFileComp))
	return c
}

// serveConfigured runs the daemon that the flags and the configuration file describe.
func serveConfigured(cmd *cobra.Command, a *app, flags serveFlags) error {
	file := newConfigFile(cmd.Flags(), flags)
	r, err := file.read()
	if err != nil {
		return usageError{err} // no restart helps; see RestartPreventExitStatus in the unit
	}
	level := &slog.LevelVar{}
	level.Set(r.o.LogLevel)
	log, flush := a.loggerAt(level, r.flags.logJSON)
	defer flush()
	for _, w := range r.warnings {
		log.Warn("configuration", "warning", w)
	}
	o := r.o
	o.Dir, o.Version, o.Log, o.SetLogLevel, o.Load = a.dirs()[0], version, log, level.Set, file.reload
	if err := setSelfTest(&o, r.flags.selfTest); err != nil {
		return err
	}
	if err := setSensors(&o, r.flags.sensors); err != nil {
		return err
	}
	if o.Alerts, err = r.flags.alerts.receivers(); err != nil {
		return usageError{err}
	}
	if !flags.noState {
		o.KeepFile = keepFile(o.StateDir, o.Dir)
	}
	setAudit(&o, r.flags.audit)
	ctx, stop := untilSignal(cmd.Context())
	defer stop()
	return serveDaemon(ctx, a, o, flags.gpus, r.flags.web, nil)
}

// serveDaemon runs a daemon with its servers until ctx ends or a server fails. It calls ready, if not
// nil, once clients can connect.
func serveDaemon(ctx context.Context, a *app, o daemon.Options, gpus virtual.Options, web webOptions, ready func(control.Control)) error {
	manager := notify.FromEnvironment()
	if o.Private {
		manager = &notify.Manager{} // the program's service reports for itself
	}
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP) // never ends the daemon: a terminal may close
	defer signal.Stop(hangups)
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE) // the reader of the log may end, too
	if running, err := client.New(filepath.Join(o.Dir, control.ControlSocket)).Version(ctx); err == nil {
		return alreadyRuns(o.Dir, running.PID)
	}
	o.Budget, o.Health = budget.New(), &health.Monitor{}
	http, err := web.listen(o)
	if err != nil {
		return err
	}
	defer http.close()
	if o.Virtual {
		device, err := serveDevice(ctx, &o, gpus)
		if err != nil {
			return err
		}
		defer device.stop()
	}
	if !o.Virtual {
		whole := ctx // the variable changes below, while the daemon examines the host
		o.Examine = func() []driver.Check { return doctor.Drivers(doctorMachine(whole, a)) }
	}
	d, err := daemon.Start(o)
	if err != nil {
		return err
	}
	defer d.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	served, err := serveControl(ctx, cancel, d, &o, http)
	if err != nil {
		return err
	}
	if ready != nil {
		ready(d)
	}
	manager.Ready()
	go reloadOn(ctx, hangups, manager, d, o.Log)
	go manager.Feed(ctx, d.Alive)
	o.Log.Info("ready", "dir", o.Dir, "virtual", o.Virtual, "version", o.Version, "http", http.addr())
	failed := false
	select {
	case <-ctx.Done():
	case <-d.Failed():
		failed = true
		cancel()
	}
	manager.Stopping()
	return endDaemon(d, served, failed, o.Log)
}

// serveDevice starts the virtual GPU of a daemon.
func serveDevice(ctx context.Context, o *daemon.Options, gpus virtual.Options) (*device, error) {
	if err := control.PrepareDir(o.Dir, os.Geteuid()); err != nil {
		return nil, err
	}
	p, err := findPlatform(o.Platform)
	if err != nil {
		return nil, err
	}
	if o.VGPUSocket == "" {
		o.VGPUSocket = p.Socket(o.Dir)
	}
	return startDevice(ctx, o.VGPUSocket, p, gpus)
}

// serveControl serves the control interface on all sockets. It calls cancel at their end.
func serveControl(ctx context.Context, cancel func(), d *daemon.Daemon, o *daemon.Options, http webServer) (served <-chan error, err error) {
	l, err := d.ListenControl()
	if err != nil {
		return nil, err
	}
	tenants, err := d.ListenTenants()
	if err != nil {
		return nil, err
	}
	result := make(chan error, 1)
	go func() {
		defer cancel()
		result <- http.serveWith(ctx, d.Control(), func(ctx context.Context) error {
			return serveSockets(ctx, d.Control(), api.Options{Log: o.Log, Budget: o.Budget, Health: o.Health}, l, tenants)
		})
	}()
	return result, nil
}

// endDaemon closes a daemon and waits for its servers.
func endDaemon(d *daemon.Daemon, served <-chan error, failed bool, log *slog.Logger) (err error) {
	late := time.After(stopTime)
	d.Close() // GPUs first; requests in progress may take longer
	select {
	case err = <-served:
	case <-late:
	}
	if err != nil && !errors.Is(err, context.Canceled) {
		return err
	}
	if failed {
		return d.Failure()
	}
	log.Info("stopped")
	return nil
}

// stopTime limits the end of the daemon and its servers. With the last lines of the log it is below 2 s.
const stopTime = 1400 * time.Millisecond

// reloadOn reads the configuration again for each signal. Reload logs its result.
func reloadOn(ctx context.Context, signals <-chan os.Signal, manager *notify.Manager, d *daemon.Daemon, log *slog.Logger) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-signals:
		}
		if !d.HasConfig() {
			log.Info("SIGHUP ignored: the daemon has no configuration file")
			continue
		}
		manager.Reloading()
		_, _ = d.Reload(ctx, control.Caller{User: identity.OnHost(os.Geteuid())}, control.ReloadRequest{})
		manager.Ready()
	}
}

// serveSockets serves the control interface on several sockets, until one fails or ctx ends.
func serveSockets(ctx context.Context, d control.Control, o api.Options, listeners ...net.Listener) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan error, len(listeners))
	for _, l := range listeners {
		go func() {
			defer cancel()
			ended <- api.Serve(ctx, l, d, o)
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

func parseLogLevel(text string) (level slog.Level, err error) {
	if err := level.UnmarshalText([]byte(text)); err != nil {
		return level, usagef("unknown log level %q; use debug, info, warn or error", text)
	}
	return level, nil
}

// logger returns a logger to standard error, and a function that writes its last lines.
func (a *app) logger(level string, asJSON bool) (_ *slog.Logger, flush func(), _ error) {
	threshold, err := parseLogLevel(level)
	if err != nil {
		return nil, nil, err
	}
	log, flush := a.loggerAt(threshold, asJSON)
	return log, flush, nil
}

// loggerAt is logger for a level that may change.
func (a *app) loggerAt(level slog.Leveler, asJSON bool) (_ *slog.Logger, flush func()) {
	options := &slog.HandlerOptions{Level: level}
	journal := logging.IsJournal(a.stderr)
	log := logging.New(a.stderr, func(w io.Writer) slog.Handler {
		switch {
		case asJSON:
			return slog.NewJSONHandler(w, options)
		case journal:
			return logging.NewJournal(w, level)
		}
		return slog.NewTextHandler(w, options)
	})
	return slog.New(log), func() { log.Close(flushTime) }
}
