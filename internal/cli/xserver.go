// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"net"
	"strconv"

	"github.com/spf13/cobra"

	"xsched/internal/control/upstream"
	"xsched/internal/daemon"
	"xsched/internal/virtual"
)

// xserverRoot takes the command line of upstream's server, `xserver [POLICY] [PORT]`. It runs
// `xsched serve` on the loopback interface.
func xserverRoot(a *app) *cobra.Command {
	var (
		o        daemon.Options
		logLevel string
		logJSON  bool
	)
	c := &cobra.Command{
		Use:   "xserver [POLICY] [PORT]",
		Short: "Run the daemon with the command line of upstream's xserver",
		Long: `Runs ` + "`xsched serve`" + ` with a policy (default HPF) and a port (default 50000) on
127.0.0.1. See ` + "`xsched serve --help`" + ` for all other options.`,
		Example: `  xserver
  xserver HPF 50000`,
		Args:             positional("[POLICY]", "[PORT]"),
		SilenceErrors:    true,
		SilenceUsage:     true,
		PersistentPreRun: func(*cobra.Command, []string) { a.started = true },
		RunE: func(cmd *cobra.Command, args []string) error {
			log, flush, err := a.logger(logLevel, logJSON)
			if err != nil {
				return err
			}
			defer flush()
			port := upstream.DefaultPort
			if len(args) > 1 {
				if port, err = parsePort(args[1]); err != nil {
					return err
				}
			}
			if len(args) > 0 {
				o.Policy = args[0]
			}
			o.Dir, o.Version, o.Log = a.dirs()[0], version, log
			if err := setSelfTest(&o, selfTestAuto); err != nil {
				return err
			}
			ctx, stop := untilSignal(cmd.Context())
			defer stop()
			return serveDaemon(ctx, a, o, virtual.Options{}, webOptions{addr: net.JoinHostPort("127.0.0.1", strconv.Itoa(port))}, nil)
		},
	}
	c.CompletionOptions.DisableDefaultCmd = true
	c.SetFlagErrorFunc(flagError)
	c.Flags().StringVar(&a.dir, "dir", "", dirHelp)
	c.Flags().BoolVar(&o.Virtual, "virtual", false, "use the virtual GPU; start it if none is running")
	logFlags(c, &logLevel, &logJSON)
	return c
}

func parsePort(text string) (int, error) {
	port, err := strconv.Atoi(text)
	if err != nil || port < 1 || port > 65535 {
		return 0, usagef("port %q is out of range; use 1 to 65535", text)
	}
	return port, nil
}
