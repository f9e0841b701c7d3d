// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"xsched/internal/control"
	"xsched/internal/health"
	"xsched/internal/kube/node"
)

// healthTimeout is shorter than the time limits of common probes.
const healthTimeout = 3 * time.Second

// healthCommand is for probes.
func (a *app) healthCommand() *cobra.Command {
	var kubelet string
	var asJSON, ready bool
	c := &cobra.Command{
		Use:   "health",
		Short: "Check that every part of the node plugin works (for probes)",
		Long: `Print "ok", or the part of ` + "`xsched-kube node`" + ` that is dead, in one line. Parts that no
restart mends, such as one that waits for the API server, follow in lines of their
own.

The exit code is 0 while all vital parts work. It is 1 if a vital part is dead or
the plugin does not answer within 3 s: a restart helps. Use it as liveness probe.
Run it as the plugin's user.

With --ready the exit code is 1 also if any other part is late: the daemon does
not answer, the kubelet does not know the plugin, or the GPUs can't be published.
Claims then can't be prepared. Use it as readiness probe.`,
		Example: `  xsched-kube health
  xsched-kube health --json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, cancel := context.WithTimeout(cmd.Context(), healthTimeout)
			defer cancel()
			states, err := health.Ask(ctx, node.HealthSocket(pluginFolder(kubelet)))
			if err != nil {
				return fmt.Errorf("the node plugin does not answer: %w; restart it", err)
			}
			return a.showHealth(states, asJSON, ready)
		},
	}
	kubeletFlag(c, &kubelet)
	c.Flags().BoolVar(&asJSON, "json", false, "print all parts as JSON")
	c.Flags().BoolVar(&ready, "ready", false, "check that claims can be prepared")
	return c
}

func (a *app) showHealth(states []health.State, asJSON, ready bool) error {
	dead := health.Dead(states)
	remedy := "restart the node plugin"
	for i := range states {
		if s := &states[i]; ready && dead == "" && s.Late() {
			dead, remedy = s.String(), "see the logs of the containers node and daemon"
		}
	}
	if asJSON {
		parts := make([]control.Part, 0, len(states))
		for i := range states {
			s := &states[i]
			parts = append(parts, control.Part{Name: s.Name, AgeNS: s.Age.Nanoseconds(), LimitNS: s.Limit.Nanoseconds(), Vital: s.Vital, Late: s.Late()})
		}
		e := json.NewEncoder(a.stdout)
		e.SetIndent("", "  ")
		if err := e.Encode(struct {
			Alive bool           `json:"alive"`
			Parts []control.Part `json:"parts"`
		}{dead == "", parts}); err != nil {
			return err
		}
	}
	if dead != "" {
		return errors.New(dead + "; " + remedy)
	}
	if asJSON {
		return nil
	}
	fmt.Fprintln(a.stdout, "ok")
	for i := range states {
		if states[i].Late() {
			fmt.Fprintln(a.stdout, states[i].String())
		}
	}
	return nil
}
