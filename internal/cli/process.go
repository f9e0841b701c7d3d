// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"xsched/internal/control"
	"xsched/internal/control/client"
)

func suspendCommand(a *app) *cobra.Command {
	return processCommand(a, &cobra.Command{
		Use:   "suspend PID",
		Short: "Suspend a program's GPU work",
		Long: `Suspend the program's GPU work, at its preemption level, until ` + "`xsched resume`" + `
or until the daemon exits. No work is lost. A program that was not started with
` + "`xsched run`" + ` is attached first. ` + "`self`" + ` instead of a PID means the calling program.`,
		Example: `  xsched suspend 4711`,
	}, "suspended", (*client.Client).Suspend)
}

func resumeCommand(a *app) *cobra.Command {
	return processCommand(a, &cobra.Command{
		Use:     "resume PID",
		Short:   "Resume a suspended program",
		Long:    "Resume a program that was suspended with `xsched suspend`. The policy schedules it again.",
		Example: `  xsched resume 4711`,

		ValidArgsFunction: a.completePIDs(func(p *control.Process) bool { return p.Held }),
	}, "resumed", (*client.Client).Resume)
}

func attachCommand(a *app) *cobra.Command {
	var hints hintFlags
	var c *cobra.Command
	var request control.HintRequest
	c = processCommand(a, &cobra.Command{
		Use:   "attach PID",
		Short: "Manage a running program that has no shim",
		Long: `Manage a program that was not started with ` + "`xsched run`" + `. The daemon can suspend it
and set its timeslice. It estimates from CPU usage when the program has GPU work.
Attach best-effort programs; start latency-critical ones with ` + "`xsched run`" + `.
Root may attach to any program, other users where the kernel permits ptrace.
A restart of the daemon detaches the program; attach it again then.`,
		Example: `  sudo xsched attach 4711 --priority -10
  sudo xsched attach 4711 --share 25`,
	}, "attached", func(daemon *client.Client, ctx context.Context, pid int) (control.ProcessReply, error) {
		return daemon.AttachWith(ctx, control.ProcessRequest{PID: pid, Priority: request.Priority, Utilization: request.Utilization})
	})
	c.PreRunE = func(*cobra.Command, []string) error { return hints.read(c, request.Set) }
	hints.add(c, "priority", "utilization")
	return c
}

func detachCommand(a *app) *cobra.Command {
	return processCommand(a, &cobra.Command{
		Use:     "detach PID",
		Short:   "Stop managing an attached program",
		Long:    "Stop managing an attached program. It runs on with its original timeslice.",
		Example: `  sudo xsched detach 4711`,

		ValidArgsFunction: a.completePIDs(func(p *control.Process) bool { return p.Attached }),
	}, "detached", (*client.Client).Detach)
}

type processCall func(*client.Client, context.Context, int) (control.ProcessReply, error)

func processCommand(a *app, c *cobra.Command, done string, call processCall) *cobra.Command {
	var asJSON bool
	c.Args = positional("PID")
	if c.ValidArgsFunction == nil {
		c.ValidArgsFunction = a.completePIDs(nil)
	}
	c.RunE = func(cmd *cobra.Command, args []string) error {
		pid, err := parsePID(args[0])
		if err != nil {
			return err
		}
		return a.withClient(cmd.Context(), func(daemon *client.Client) error {
			reply, err := call(daemon, cmd.Context(), pid)
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
