// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"xsched/internal/control"
	"xsched/internal/guardian"
	"xsched/internal/health"
)

// healthTimeout is shorter than the time limits of common probes.
const healthTimeout = 3 * time.Second

// healthCommand is for probes. It asks nothing of the engine, so it answers when the engine hangs.
func healthCommand(a *app) *cobra.Command {
	var asJSON, service bool
	c := &cobra.Command{
		Use:   "health",
		Short: "Check that every part of the daemon works (for probes)",
		Long: `Print "ok", or the part of the daemon that is dead, in one line. The engine loop
counts as dead after one second without a heartbeat; each part has its limit.

The exit code is 0 while all vital parts work. It is 1 if a vital part is dead or
no daemon answers within 3 s: a restart of the daemon helps. Use it as liveness
and readiness probe. Dead parts that no restart mends follow "ok" in lines of
their own; ` + "`xsched status`" + ` reports them, too.

With --guardian it asks the guardian service instead. Run it as its user.`,
		Example: `  xsched health
  xsched health --json | jq -r '.parts[] | select(.late).name'`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if service {
				return guardianHealth(a)
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), healthTimeout)
			defer cancel()
			stats, err := healthOf(ctx, a)
			if err != nil {
				return err
			}
			dead := stats.Dead()
			reply := struct {
				Alive bool           `json:"alive"`
				Parts []control.Part `json:"parts"`
			}{dead == "", stats.Parts}
			if err := a.show(reply, nil, asJSON, func(w io.Writer) {
				if dead == "" {
					fmt.Fprintln(w, strings.Join(append([]string{"ok"}, stats.Impaired()...), "\n"))
				}
			}); err != nil || dead == "" {
				return err
			}
			return errors.New(dead)
		},
	}
	jsonFlag(c, &asJSON)
	c.Flags().BoolVar(&service, "guardian", false, "check the guardian service, not the daemon")
	c.MarkFlagsMutuallyExclusive("guardian", "json")
	return c
}

func guardianHealth(a *app) error {
	late, err := guardian.CheckService(a.dirs()[0])
	if err != nil {
		return fmt.Errorf("%w; restart the guardian", err)
	}
	if dead := health.Dead(late); dead != "" {
		return errors.New(dead + "; restart the guardian")
	}
	fmt.Fprintln(a.stdout, "ok")
	for i := range late {
		fmt.Fprintln(a.stdout, late[i].String())
	}
	return nil
}

func healthOf(ctx context.Context, a *app) (control.Stats, error) {
	daemon, _, err := a.connect(ctx)
	if err != nil {
		return control.Stats{}, err
	}
	defer daemon.Close()
	return daemon.Stats(ctx)
}
