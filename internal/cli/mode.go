// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"xsched/internal/control"
	"xsched/internal/control/client"
	"xsched/internal/model"
)

func (a *app) modeCommand() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "mode [off|timeslice|suspend|level N|live]",
		Short: "Show or select how much of a plan is carried out",
		Long: `Without an argument: show the mode in force. With one: select it, live.

  off        nothing; the hardware shares as it likes
  timeslice  hardware timeslices only
  suspend    suspend and resume only
  level N    suspend and resume, every program at level N (1 to 3)
  live       everything; the default

Needs the daemon's user or root.`,
		Example: `  xsched mode
  xsched mode off
  xsched mode level 1`,
		Args:      cobra.MaximumNArgs(2),
		ValidArgs: modeNames(),
		RunE: func(cmd *cobra.Command, args []string) error {
			request, err := parseMode(args)
			if err != nil {
				return err
			}
			return a.withClient(cmd.Context(), func(client *client.Client) error {
				var reply control.ModeReply
				if request.Mode == "" {
					reply, err = client.Mode(cmd.Context())
				} else {
					reply, err = client.SetMode(cmd.Context(), request)
				}
				if err != nil {
					return err
				}
				if asJSON {
					return a.printJSON(reply)
				}
				fmt.Fprintf(a.stdout, "mode: %s (available: %s)\n", modeText(reply.Mode, reply.Level), strings.Join(reply.Available, ", "))
				return nil
			})
		},
	}
	jsonFlag(c, &asJSON)
	return c
}

func modeNames() []string {
	names := make([]string, 0, len(model.Modes))
	for _, m := range model.Modes {
		names = append(names, string(m))
	}
	return names
}

func modeText(mode string, level int) string {
	if level != 0 {
		return fmt.Sprintf("%s %d", mode, level)
	}
	return mode
}

// parseMode reads the arguments of `mode`; none gives the zero request, which reads.
func parseMode(args []string) (control.ModeRequest, error) {
	if len(args) == 0 {
		return control.ModeRequest{}, nil
	}
	request := control.ModeRequest{Mode: args[0]}
	if !contains(modeNames(), args[0]) {
		return request, usagef("unknown mode %q; use %s", args[0], "off, timeslice, suspend, level N or live")
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
	level, err := parseLevel(args[1])
	if err != nil {
		return request, err
	}
	if level == model.LevelAuto {
		return request, usagef("mode level can't be auto; use 1, 2 or 3, or mode live")
	}
	request.Level = int(level)
	return request, nil
}
