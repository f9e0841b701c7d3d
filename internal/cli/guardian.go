// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"xsched/internal/control"
	"xsched/internal/driver/registry"
	"xsched/internal/guardian"
	"xsched/internal/health"
	"xsched/internal/notify"
)

func guardianCommand(a *app) *cobra.Command {
	var (
		service  bool
		logLevel string
		logJSON  bool
	)
	c := &cobra.Command{
		Use:   "guardian",
		Short: "Restore attached programs when the daemon dies (for service managers)",
		Long: `Resume attached programs and restore their timeslices when the daemon dies or
stalls. Without the service the daemon starts a guardian of its own, which one
kill of their cgroup can end together with the daemon.

The service restores at its start what a daemon and a guardian left that died
together. Start it with the daemon's user and --dir.`,
		Example: `  xsched guardian --service`,
		Hidden:  true,
		Args:    cobra.ArbitraryArgs, // shown in ps: "trace PID"
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !service {
				return guardian.Main(3, registry.All(), version)
			}
			log, flush, err := a.logger(logLevel, logJSON)
			if err != nil {
				return err
			}
			defer flush()
			dir, err := filepath.Abs(a.dirs()[0])
			if err != nil {
				return fmt.Errorf("find directory: %w", err)
			}
			if err := control.PrepareDir(dir, os.Geteuid()); err != nil {
				return err
			}
			ctx, stop := untilSignal(cmd.Context())
			defer stop()
			manager := notify.FromEnvironment()
			monitor := &health.Monitor{}
			go manager.Feed(ctx, monitor.Alive)
			return guardian.Serve(ctx, guardian.ServiceOptions{
				Dir: dir, Drivers: registry.All(), Version: version, Log: log, Health: monitor,
				Ready: func() { log.Info("ready", "dir", dir, "version", version); manager.Ready() },
			})
		},
	}
	c.Flags().BoolVar(&service, "service", false, "serve daemons on a socket in the runtime folder")
	logFlags(c, &logLevel, &logJSON)
	return c
}
