// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"errors"
	"net/netip"

	"github.com/spf13/cobra"

	"xsched/internal/window"
)

// x11MonitorRoot takes the command line of upstream's x11_monitor. It follows all local displays.
func x11MonitorRoot(a *app) *cobra.Command {
	var (
		logLevel string
		logJSON  bool
	)
	c := upstreamTool(a, &cobra.Command{
		Use:   "x11_monitor",
		Short: "Follow the active window with the command line of upstream's x11_monitor",
		Long:  "Runs `xsched window follow --all`. Address and ports have no effect: it uses the daemon's socket.",
		Example: `  x11_monitor
  x11_monitor -a 127.0.0.1 -p 50000`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return followWindows(cmd.Context(), a, &window.Follower{Displays: localDisplays}, logLevel, logJSON)
		},
	})
	c.Flags().Uint16P("listen", "l", 0, "has no effect: a launcher needs no port")
	logFlags(c, &logLevel, &logJSON)
	return c
}

// x11LauncherRoot takes the command line of upstream's x11_launcher.
func x11LauncherRoot(a *app) *cobra.Command {
	var virtual bool
	c := upstreamTool(a, &cobra.Command{
		Use:   "x11_launcher [flags] -- CMD [ARG...]",
		Short: "Run a program in the active window with the command line of upstream's x11_launcher",
		Long:  "Runs `xsched window launch -- CMD`. Address and port have no effect.",
		Example: `  x11_launcher -- ./app
  x11_launcher ./app --size 3`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return errors.New("no command given; use `x11_launcher -- CMD [ARG...]`")
			}
			return nil
		},
		RunE: func(_ *cobra.Command, args []string) error {
			l := launcher{app: a, virtual: virtual}
			return l.runBound(nil, args)
		},
	})
	c.Flags().SetInterspersed(false)
	c.Flags().BoolVar(&virtual, "virtual", false, "run CMD on the virtual GPU")
	return c
}

// upstreamTool completes a command that has the name of an upstream window tool.
func upstreamTool(a *app, c *cobra.Command) *cobra.Command {
	var addr string
	c.SilenceErrors, c.SilenceUsage = true, true
	c.PersistentPreRun = func(*cobra.Command, []string) { a.started = true }
	c.PreRunE = func(cmd *cobra.Command, _ []string) error {
		if ip, err := netip.ParseAddr(addr); err != nil || !ip.IsLoopback() {
			return usagef("--addr %s is not this machine; run %s where the daemon and the X server are", addr, cmd.Name())
		}
		return nil
	}
	c.CompletionOptions.DisableDefaultCmd = true
	c.SetFlagErrorFunc(flagError)
	c.Flags().StringVar(&a.dir, "dir", "", dirHelp)
	c.Flags().StringVarP(&addr, "addr", "a", "127.0.0.1", "must be this machine")
	c.Flags().Uint16P("port", "p", 0, "has no effect: the daemon's socket is used")
	return c
}
