// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"xsched/internal/control"
	"xsched/internal/kube/fleetview"
	"xsched/internal/kube/view"
	"xsched/internal/screen"
	"xsched/internal/top"
)

// The units of a list.
const (
	byProgram = "program"
	byPod     = "pod"
)

func (a *app) listCommand() *cobra.Command {
	var f fleetFlags
	var by string
	c := &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List the tenants of all nodes",
		Long: `List the programs of all nodes with their pods, one line each. Lines with the nodes
that do not answer follow.

  CLASS  device class or priority class that sets the hints
  GPU    share of the last second
  P99    latency of recent requests
  WAIT   P99 of the part in which others kept the request from running
  RAN    time with work on the GPU, summed over the present queues
  LOST   time with work while preempted, likewise
  KEPT   RAN as a part of RAN and LOST

--by pod adds up the programs of each pod, and shows the largest P99 and WAIT
among them. It leaves out programs outside pods.`,
		Example: `  kubectl xsched list
  kubectl xsched list -n research --by pod
  kubectl xsched list --json | jq -r '.tenants[] | [.node, .pod, .gpu_share] | @tsv'`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if by != byProgram && by != byPod {
				return fmt.Errorf("--by %q is unknown; use %s or %s", by, byProgram, byPod)
			}
			d, err := f.daemons()
			if err != nil {
				return err
			}
			fleet, err := f.once(cmd.Context(), d)
			if err != nil {
				return err
			}
			if f.asJSON {
				err = a.printJSON(listed(&fleet, by))
			} else {
				writeList(a.stdout, &fleet, by, a.width())
			}
			if err != nil {
				return err
			}
			return unanswered(&fleet)
		},
	}
	f.tenants(c)
	c.Flags().StringVar(&by, "by", byProgram, "one line per `UNIT`: "+byProgram+" or "+byPod)
	return c
}

func dash(s string) string { return cmp.Or(s, "-") }

// nodeStatus is one node's answer to `xsched status`.
type nodeStatus struct {
	Node   string          `json:"node"`
	Error  string          `json:"error,omitempty"`
	Status json.RawMessage `json:"status,omitempty"`

	parsed top.Status
}

func (a *app) statusCommand() *cobra.Command {
	var f fleetFlags
	c := &cobra.Command{
		Use:   "status",
		Short: "Show the health of all nodes' daemons",
		Long: `Show one line per node and one per problem. The exit code is 0 if all nodes answer
without problems, else 1. Problems are those of ` + "`xsched status`" + `.`,
		Example: `  kubectl xsched status
  kubectl xsched status --json | jq '.[] | select(.status.healthy | not)'`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			d, err := f.daemons()
			if err != nil {
				return err
			}
			targets, err := d.Targets(cmd.Context(), f.node)
			if err != nil {
				return err
			}
			all := statusOf(cmd.Context(), d, targets)
			if f.asJSON {
				err = a.printJSON(all)
			} else {
				writeStatus(a.stdout, all, a.width())
			}
			if bad := unhealthy(all); err == nil && bad > 0 {
				err = fmt.Errorf("%d of %d nodes have problems; see above", bad, len(all))
			}
			return err
		},
	}
	f.register(c)
	return c
}

func statusOf(ctx context.Context, d *fleetview.Daemons, targets []fleetview.Target) []nodeStatus {
	all := make([]nodeStatus, len(targets))
	d.Ask(ctx, targets, view.StatusPath, func(i int, answer []byte, err error) {
		all[i] = nodeStatus{Node: targets[i].Node}
		if err == nil {
			all[i].Status = answer
			err = json.Unmarshal(answer, &all[i].parsed)
		}
		if err != nil {
			all[i].Status, all[i].Error = nil, strings.Join(strings.Fields(err.Error()), " ")
		}
	})
	return all
}

func unhealthy(all []nodeStatus) int {
	n := 0
	for _, s := range all {
		if s.Error != "" || !s.parsed.Healthy {
			n++
		}
	}
	return n
}

func writeStatus(w io.Writer, all []nodeStatus, width int) {
	var text strings.Builder
	table := tabwriter.NewWriter(&text, 0, 4, 2, ' ', 0)
	fmt.Fprintln(table, "NODE\tHEALTH\tVERSION\tPOLICY\tMODE\tGPUS\tPROGRAMS")
	for _, s := range all {
		if s.Error != "" {
			fmt.Fprintf(table, "%s\tno answer\t-\t-\t-\t-\t-\n", s.Node)
			continue
		}
		health, version, programs := "ok", "-", 0
		if !s.parsed.Healthy {
			health = "problems"
		}
		if s.parsed.Daemon != nil {
			version = s.parsed.Daemon.Version
		}
		for _, n := range s.parsed.Programs {
			programs += n
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%d\t%d\n", s.Node, health, version, dash(s.parsed.Policy), dash(control.ModeText(s.parsed.Mode, s.parsed.ModeLevel)), len(s.parsed.Devices), programs)
	}
	_ = table.Flush() // into memory
	writeLines(w, text.String(), width)
	var problems fleetview.Remarks
	for _, s := range all {
		if s.Error != "" {
			problems.Add(s.Node, s.Error)
		}
		for _, p := range s.parsed.Problems {
			problems.Add(s.Node, strings.TrimSuffix(p.Cause+"; "+p.Remedy, "; "))
		}
	}
	for _, line := range problems.Lines() {
		fmt.Fprintf(w, "problem: %s\n", screen.Clean(line))
	}
}
