// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"xsched/internal/api"
	"xsched/internal/daemon"
	"xsched/internal/model"
)

func (a *app) hintCommand() *cobra.Command {
	var (
		asJSON          bool
		priority        int
		level           string
		inFlight, batch int
		share           int
	)
	c := &cobra.Command{
		Use:   "hint PID [flags]",
		Short: "Change a running program's priority, share, level or limits",
		Long: `Changes what is given and leaves the rest; without flags shows what is in force.
You may change your own programs, root may change all. On root's daemon only
root may go above priority 0, unless it was started with --allow-priority.`,
		Example: `  xsched hint 4711 --priority 10
  xsched hint 4711 --share 75
  xsched hint 4711 --level 1 --in-flight 8 --batch 4`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			pid, err := parsePID(args[0])
			if err != nil {
				return err
			}
			request := daemon.HintRequest{PID: pid}
			flags := cmd.Flags()
			if flags.Changed("priority") {
				if err := checkPriority(priority); err != nil {
					return err
				}
				p := int32(priority)
				request.Priority = &p
			}
			if flags.Changed("level") {
				l, err := parseLevel(level)
				if err != nil {
					return err
				}
				number := int(l)
				request.Level = &number
			}
			if err := checkLimits(inFlight, batch); err != nil {
				return err
			}
			if flags.Changed("in-flight") {
				request.InFlight = &inFlight
			}
			if flags.Changed("batch") {
				request.Batch = &batch
			}
			if err := checkShare(cmd, share); err != nil {
				return err
			}
			if flags.Changed("share") {
				request.Utilization = &share
			}
			return a.withClient(cmd.Context(), func(client *api.Client) error {
				reply, err := client.Hint(cmd.Context(), request)
				if err != nil {
					return err
				}
				if asJSON {
					return a.printJSON(reply)
				}
				fmt.Fprintf(a.stdout, "%d: priority %d, level %s, share %s, in flight %s, batch %s\n", reply.PID, reply.Priority,
					model.Level(reply.Level), shareText(reply.Utilization), orDefault(reply.InFlight), orDefault(reply.Batch))
				return nil
			})
		},
	}
	hintFlags(c, &priority, &level, &inFlight, &batch)
	shareFlag(c, &share)
	jsonFlag(c, &asJSON)
	return c
}

// hintFlags are the flags that `hint` and `run` share.
func hintFlags(c *cobra.Command, priority *int, level *string, inFlight, batch *int) {
	c.Flags().IntVarP(priority, "priority", "p", 0, "bigger is more important: -255 to 255; -256 never runs")
	c.Flags().StringVarP(level, "level", "l", "auto", "how to stop it: auto, 1 (hold launches), 2 (end of slice), 3 (mid-kernel)")
	c.Flags().IntVar(inFlight, "in-flight", 0, "level 1: most launches in flight (0: the daemon's default)")
	c.Flags().IntVar(batch, "batch", 0, "level 1: launches between two completion checks (0: the daemon's default)")
	_ = c.RegisterFlagCompletionFunc("level", cobra.FixedCompletions([]string{"auto", "1", "2", "3"}, cobra.ShellCompDirectiveNoFileComp))
}

// shareFlag is for commands that give a program a share.
func shareFlag(c *cobra.Command, share *int) {
	c.Flags().IntVar(share, "share", 0, "share of the GPU in percent, 1 to 100, under a policy that knows shares (UP, PUP, SPUP)")
}

// checkShare holds a share that was given to its range.
func checkShare(c *cobra.Command, share int) error {
	if c.Flags().Changed("share") && (share < 1 || share > model.UtilizationMax) {
		return usagef("--share %d is out of range; use 1 to %d", share, model.UtilizationMax)
	}
	return nil
}

func shareText(share int) string {
	if share == 0 {
		return "-"
	}
	return fmt.Sprintf("%d%%", share)
}

func orDefault(n int) string {
	if n == 0 {
		return "default"
	}
	return fmt.Sprint(n)
}
