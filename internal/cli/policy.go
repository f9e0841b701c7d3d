// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"xsched/internal/control"
	"xsched/internal/control/client"
)

func policyCommand(a *app) *cobra.Command {
	var asJSON bool
	var gpu string
	c := &cobra.Command{
		Use:   "policy [NAME]",
		Short: "Show or set the scheduling policy",
		Long: `Without a name, show the current policy and all available ones. With a name, set
the policy immediately for all programs. Setting the policy requires root or the
daemon's user.

--gpu shows or sets the policy of one GPU, which then keeps it when the policy of
the others changes. The name "default" returns the GPU to the policy of the others.`,
		Example: `  xsched policy
  xsched policy hpf
  xsched policy --gpu 0000:02:00.0 fifo
  xsched policy --gpu 1 default`,
		Args: positional("[NAME]"),
		ValidArgsFunction: func(c *cobra.Command, args []string, text string) ([]string, cobra.ShellCompDirective) {
			if len(args) > 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return completePolicies(c, args, text)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withClient(cmd.Context(), func(daemon *client.Client) error {
				device, err := findGPU(cmd.Context(), daemon, gpu)
				if err != nil {
					return err
				}
				var reply control.PolicyReply
				if len(args) == 0 && device == "" {
					reply, err = daemon.Policy(cmd.Context())
				} else {
					request := control.PolicyRequest{Device: device}
					if len(args) > 0 {
						request.Name = args[0]
					}
					reply, err = daemon.SetPolicy(cmd.Context(), request)
				}
				return a.show(reply, err, asJSON, func(w io.Writer) {
					fmt.Fprintf(w, "policy%s: %s\n", onGPU(device), reply.Name)
					if device == "" {
						writeSettings(w, reply.Devices)
					}
					if len(args) == 0 {
						writePolicies(w, reply)
					}
				})
			})
		},
	}
	gpuFlag(c, &gpu)
	jsonFlag(c, &asJSON)
	return c
}

func gpuFlag(c *cobra.Command, gpu *string) {
	c.Flags().StringVar(gpu, "gpu", "", "only on this GPU: its PCI `ADDRESS`, or its row in xsched list --devices, from 0")
}

// findGPU returns the address of a GPU, given by address or by row; empty: none.
func findGPU(ctx context.Context, daemon *client.Client, name string) (string, error) {
	row, err := strconv.Atoi(name)
	if name == "" || err != nil {
		return strings.ToLower(name), nil
	}
	reply, err := daemon.Devices(ctx)
	if err != nil {
		return "", err
	}
	if row < 0 || row >= len(reply.Devices) {
		return "", usagef("there is no GPU %d; the daemon knows %d, see `xsched list --devices`", row, len(reply.Devices))
	}
	return reply.Devices[row].ID, nil
}

func onGPU(device string) string {
	if device == "" {
		return ""
	}
	return " on " + device
}

// writeSettings lists the GPUs with a policy or a mode of their own.
func writeSettings(w io.Writer, all []control.DeviceSetting) {
	for _, s := range all {
		var own []string
		if s.Policy != "" {
			own = append(own, "policy "+s.Policy)
		}
		if s.Mode != "" {
			own = append(own, "mode "+control.ModeText(s.Mode, s.Level))
		}
		fmt.Fprintf(w, "on %s: %s\n", s.Device, strings.Join(own, ", "))
	}
}

// writePolicies lists the available policies and marks the current one.
func writePolicies(w io.Writer, reply control.PolicyReply) {
	table := newTable(w)
	for _, name := range reply.Available {
		mark := " "
		if name == reply.Name {
			mark = "*"
		}
		fmt.Fprintf(table, "%s %s\t%s\n", mark, name, reply.Summaries[name])
	}
	_ = table.Flush()
}
