// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"xsched/internal/control"
	"xsched/internal/control/client"
)

func (a *app) policyCommand() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "policy [NAME]",
		Short: "Show or set the scheduling policy",
		Long: `Without a name, show the current policy and all available ones. With a name, set
the policy immediately for all programs. Setting the policy requires root or the
daemon's user.`,
		Example: `  xsched policy
  xsched policy hpf`,
		Args: positional("[NAME]"),
		ValidArgsFunction: func(c *cobra.Command, args []string, text string) ([]string, cobra.ShellCompDirective) {
			if len(args) > 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return completePolicies(c, args, text)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withClient(cmd.Context(), func(daemon *client.Client) error {
				var reply control.PolicyReply
				var err error
				if len(args) == 0 {
					reply, err = daemon.Policy(cmd.Context())
				} else {
					reply, err = daemon.SetPolicy(cmd.Context(), control.PolicyRequest{Name: args[0]})
				}
				return a.show(reply, err, asJSON, func(w io.Writer) {
					fmt.Fprintf(w, "policy: %s\n", reply.Name)
					if len(args) == 0 {
						writePolicies(w, reply)
					}
				})
			})
		},
	}
	jsonFlag(c, &asJSON)
	return c
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
