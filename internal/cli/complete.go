// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"xsched/internal/control"
	"xsched/internal/control/client"
	"xsched/internal/policy"
)

// completionTime bounds the wait for a daemon while the user presses Tab.
const completionTime = 500 * time.Millisecond

// completePolicies offers the policies with their summaries.
func completePolicies(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	var out []string
	for _, name := range policy.Names() {
		out = append(out, name+"\t"+policy.Summary(name))
	}
	return out, cobra.ShellCompDirectiveNoFileComp
}

// completePIDs offers the PIDs of the programs that keep selects, with their commands.
func (a *app) completePIDs(keep func(*control.Process) bool) cobra.CompletionFunc {
	return func(c *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		ctx, cancel := context.WithTimeout(c.Context(), completionTime)
		defer cancel()
		var out []string
		_ = a.withClient(ctx, func(daemon *client.Client) error {
			list, err := daemon.List(ctx)
			for i := range list.Processes {
				if p := &list.Processes[i]; keep == nil || keep(p) {
					out = append(out, strconv.Itoa(p.PID)+"\t"+strings.ReplaceAll(printable(p.Command), "\t", " "))
				}
			}
			return err
		})
		return out, cobra.ShellCompDirectiveNoFileComp
	}
}
