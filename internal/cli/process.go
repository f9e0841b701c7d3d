// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"xsched/internal/control"
	"xsched/internal/control/client"
)

func (a *app) suspendCommand() *cobra.Command {
	return a.processCommand(&cobra.Command{
		Use:   "suspend PID",
		Short: "Stop a program's GPU work until `resume`",
		Long: `Stops the program's work on the GPU, at the level in force for it, until
` + "`xsched resume`" + ` or until the daemon goes. Nothing is lost. A program that was
not started with ` + "`xsched run`" + ` is attached to first.`,
		Example: `  xsched suspend 4711`,
	}, "suspended", (*client.Client).Suspend)
}

func (a *app) resumeCommand() *cobra.Command {
	return a.processCommand(&cobra.Command{
		Use:     "resume PID",
		Short:   "Undo `suspend`",
		Long:    "Lets a program that was suspended by hand run again, as the policy decides.",
		Example: `  xsched resume 4711`,
	}, "resumed", (*client.Client).Resume)
}

func (a *app) attachCommand() *cobra.Command {
	var hints hintFlags
	var c *cobra.Command
	var request control.HintRequest
	c = a.processCommand(&cobra.Command{
		Use:   "attach PID",
		Short: "Take control of a program that runs without the shim",
		Long: `Takes a program under control that was not started with ` + "`xsched run`" + `. The daemon
can stop it and give it a timeslice, but only guess when it has work: from whether
it uses the CPU. So attach what shall wait for others; start what others shall
wait for with ` + "`xsched run`" + `. Root may attach to all programs, others to those the
kernel lets them (ptrace rules).`,
		Example: `  sudo xsched attach 4711 --priority -10
  sudo xsched attach 4711 --share 25`,
	}, "attached", func(client *client.Client, ctx context.Context, pid int) (control.ProcessReply, error) {
		return client.AttachWith(ctx, control.ProcessRequest{PID: pid, Priority: request.Priority, Utilization: request.Utilization})
	})
	c.PreRunE = func(*cobra.Command, []string) error { return hints.read(c, request.Set) }
	hints.add(c, "priority", "utilization")
	return c
}

func (a *app) detachCommand() *cobra.Command {
	return a.processCommand(&cobra.Command{
		Use:     "detach PID",
		Short:   "Undo `attach`",
		Long:    "Gives an attached program back as it was: running, with its own timeslice.",
		Example: `  sudo xsched detach 4711`,
	}, "detached", (*client.Client).Detach)
}

type processCall func(*client.Client, context.Context, int) (control.ProcessReply, error)

func (a *app) processCommand(c *cobra.Command, done string, call processCall) *cobra.Command {
	var asJSON bool
	c.Args = cobra.ExactArgs(1)
	c.RunE = func(cmd *cobra.Command, args []string) error {
		pid, err := parsePID(args[0])
		if err != nil {
			return err
		}
		return a.withClient(cmd.Context(), func(client *client.Client) error {
			reply, err := call(client, cmd.Context(), pid)
			if err != nil {
				return err
			}
			if asJSON {
				return a.printJSON(reply)
			}
			if reply.Message != "" {
				fmt.Fprintln(a.stdout, printable(reply.Message))
			} else {
				fmt.Fprintf(a.stdout, "process %d is %s\n", reply.PID, done)
			}
			return nil
		})
	}
	jsonFlag(c, &asJSON)
	return c
}
