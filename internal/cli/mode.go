// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"xsched/internal/control"
	"xsched/internal/control/client"
	"xsched/internal/model"
)

// modeSetting is the command mode.
type modeSetting struct {
	app    *app
	asJSON bool
	gpu    string
}

func modeCommand(a *app) *cobra.Command {
	m := &modeSetting{app: a}
	c := &cobra.Command{
		Use:   "mode [off|timeslice|suspend|level N|live]",
		Short: "Show or set the preemption mode",
		Long: `Without an argument, show the current mode. With one, set it immediately.

  off        no preemption; the hardware timeslices natively
  timeslice  hardware timeslices only
  suspend    suspend and resume only
  level N    suspend and resume, every program at level N (1 to 3)
  live       all mechanisms (default)

Setting the mode requires root or the daemon's user.

--gpu shows or sets the mode of one GPU, which then keeps it when the mode of the
others changes. The mode "default" returns the GPU to the mode of the others.`,
		Example: `  xsched mode
  xsched mode off
  xsched mode level 1
  xsched mode --gpu 0000:02:00.0 off
  xsched mode --gpu 1 default`,
		Args: positional("[MODE]", "[N]"),
		ValidArgsFunction: func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			switch {
			case len(args) == 0:
				return modeNames(), cobra.ShellCompDirectiveNoFileComp
			case len(args) == 1 && args[0] == string(model.ModeLevel):
				return []string{"1", "2", "3"}, cobra.ShellCompDirectiveNoFileComp
			}
			return nil, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: m.run,
	}
	m.flags(c)
	return c
}

func (m *modeSetting) flags(c *cobra.Command) {
	gpuFlag(c, &m.gpu)
	jsonFlag(c, &m.asJSON)
}

func (m *modeSetting) run(cmd *cobra.Command, args []string) error {
	var request control.ModeRequest
	var err error
	if m.gpu != "" && len(args) == 1 && args[0] == control.DefaultSetting {
		request.Mode = control.DefaultSetting
	} else if request, err = parseMode(args); err != nil {
		return err
	}
	return m.app.withClient(cmd.Context(), func(daemon *client.Client) error {
		var reply control.ModeReply
		if request.Device, err = findGPU(cmd.Context(), daemon, m.gpu); err != nil {
			return err
		}
		if request == (control.ModeRequest{}) {
			reply, err = daemon.Mode(cmd.Context())
		} else {
			reply, err = daemon.SetMode(cmd.Context(), request)
		}
		if err != nil {
			return err
		}
		if m.asJSON {
			return m.app.printJSON(reply)
		}
		fmt.Fprintf(m.app.stdout, "mode%s: %s (available: %s)\n", onGPU(request.Device), control.ModeText(reply.Mode, reply.Level), strings.Join(reply.Available, ", "))
		if request.Device == "" {
			writeSettings(m.app.stdout, reply.Devices)
		}
		return nil
	})
}

func modeNames() []string {
	names := make([]string, 0, len(model.Modes))
	for _, m := range model.Modes {
		names = append(names, string(m))
	}
	return names
}

// parseMode reads the arguments of `mode`. Without arguments it returns the zero request, which
// only reads.
func parseMode(args []string) (control.ModeRequest, error) {
	if len(args) == 0 {
		return control.ModeRequest{}, nil
	}
	request := control.ModeRequest{Mode: args[0]}
	if !slices.Contains(modeNames(), args[0]) {
		return request, usagef("unknown mode %q; use off, timeslice, suspend, level N or live", args[0])
	}
	if args[0] != string(model.ModeLevel) {
		if len(args) > 1 {
			return request, usagef("mode %s takes no level; use `mode level %s`", args[0], args[1])
		}
		return request, nil
	}
	if len(args) == 1 {
		return request, usagef("mode level needs a level; use `mode level 1`, 2 or 3")
	}
	level, err := parseModeLevel(args[1])
	request.Level = int(level)
	return request, err
}
