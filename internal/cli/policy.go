// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"xsched/internal/control"
	"xsched/internal/control/client"
)

func (a *app) policyCommand() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use:   "policy [NAME]",
		Short: "Show or select the scheduling policy",
		Long: `Without a name: show the policy in force and the others there are.
With a name: select it, at once and for all programs. Needs the daemon's user or root.`,
		Example: `  xsched policy
  xsched policy hpf`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withClient(cmd.Context(), func(client *client.Client) error {
				var reply control.PolicyReply
				var err error
				if len(args) == 0 {
					reply, err = client.Policy(cmd.Context())
				} else {
					reply, err = client.SetPolicy(cmd.Context(), control.PolicyRequest{Name: args[0]})
				}
				if err != nil {
					return err
				}
				if asJSON {
					return a.printJSON(reply)
				}
				fmt.Fprintf(a.stdout, "policy: %s (available: %s)\n", reply.Name, strings.Join(reply.Available, ", "))
				return nil
			})
		},
	}
	jsonFlag(c, &asJSON)
	return c
}
