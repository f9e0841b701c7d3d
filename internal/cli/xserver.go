// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"net"
	"strconv"

	"github.com/spf13/cobra"

	"xsched/internal/control/upstream"
	"xsched/internal/daemon"
)

// xserver is the command line of XSched's server: `xserver [POLICY] [PORT]`. It
// is `xsched serve` with these two, and listens on the loopback only.
func (a *app) xserver() *cobra.Command {
	var (
		o        daemon.Options
		logLevel string
		logJSON  bool
	)
	c := &cobra.Command{
		Use:   "xserver [POLICY] [PORT]",
		Short: "Run the daemon the way XSched's xserver is started",
		Long: `Runs ` + "`xsched serve`" + ` with a policy (default HPF) and a port (default 50000) on
127.0.0.1; see ` + "`xsched serve --help`" + ` for all else that can be set there.`,
		Example: `  xserver
  xserver HPF 50000`,
		Args:             cobra.MaximumNArgs(2),
		SilenceErrors:    true,
		SilenceUsage:     true,
		PersistentPreRun: func(*cobra.Command, []string) { a.started = true },
		RunE: func(cmd *cobra.Command, args []string) error {
			log, err := a.logger(logLevel, logJSON)
			if err != nil {
				return err
			}
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
			return a.serve(ctx, o, 0, webOptions{addr: net.JoinHostPort("127.0.0.1", strconv.Itoa(port))}, nil)
		},
	}
	c.CompletionOptions.DisableDefaultCmd = true
	c.Flags().StringVar(&a.dir, "dir", "", "folder of the daemon's sockets (default $XSCHED_DIR, /run/xsched for root, else your own)")
	c.Flags().BoolVar(&o.Virtual, "virtual", false, "use the virtual GPU; starts it unless one answers")
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
