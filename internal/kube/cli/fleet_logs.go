// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"xsched/internal/control"
	"xsched/internal/kube/fleetview"
	"xsched/internal/kube/view"
	"xsched/internal/screen"
)

func (a *app) logsCommand() *cobra.Command {
	var f fleetFlags
	var follow bool
	var since string
	var kinds []string
	c := &cobra.Command{
		Use:   "logs NODE",
		Short: "Show what happened on a node: preemptions, changes, faults",
		Long: `Show the journal of a node's daemon, as ` + "`xsched logs`" + ` does there. The daemon's own log
is in ` + "`kubectl -n xsched-system logs`" + `.`,
		Example: `  kubectl xsched logs gpu-7
  kubectl xsched logs gpu-7 --follow --kind preemption`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			query := url.Values{}
			from, err := parseSince(since, time.Now())
			if err != nil {
				return err
			}
			query.Set("since_ns", strconv.FormatInt(from, 10))
			query.Set("kind", strings.Join(kinds, ","))
			query.Set("follow", strconv.FormatBool(follow))
			d, err := f.daemons()
			if err != nil {
				return err
			}
			targets, err := d.Targets(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			if p := targets[0].Problem; p != "" {
				return fmt.Errorf("node %s does not answer: %s", args[0], p)
			}
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
			defer stop()
			err = a.journal(ctx, d, targets[0].Pod, query, f.asJSON)
			if ctx.Err() != nil {
				return nil // ended by the user
			}
			return err
		},
	}
	c.Flags().BoolVarP(&follow, "follow", "f", false, "print new entries until interrupted")
	c.Flags().StringVar(&since, "since", "", "only entries after `TIME`: a duration such as 10m, or a date")
	c.Flags().StringSliceVar(&kinds, "kind", nil, "only entries of `KIND`: see `xsched logs --help`")
	c.Flags().BoolVar(&f.asJSON, "json", false, "print JSON")
	f.connection(c)
	return c
}

// parseSince reads a duration before now, a date or a local time, as nanoseconds. Empty: the beginning.
func parseSince(text string, now time.Time) (int64, error) {
	if text == "" {
		return 0, nil
	}
	if d, err := time.ParseDuration(text); err == nil && d >= 0 {
		return now.Add(-d).UnixNano(), nil
	}
	for _, layout := range []string{time.RFC3339, "2006-01-02T15:04:05", "2006-01-02 15:04", time.DateOnly} {
		if t, err := time.ParseInLocation(layout, text, now.Location()); err == nil {
			return t.UnixNano(), nil
		}
	}
	return 0, fmt.Errorf("%q is no time; use a duration like 10m or a date like 2026-01-31", text)
}

// journal prints the journal of a node. A stream has a longest time; another one continues after its last entry.
func (a *app) journal(ctx context.Context, d *fleetview.Daemons, pod string, query url.Values, asJSON bool) error {
	for {
		err := d.Lines(ctx, pod, view.JournalPath, query, func(line []byte) error {
			var e struct {
				control.JournalEntry
				view.Failure
			}
			if err := json.Unmarshal(line, &e); err != nil {
				return fmt.Errorf("the node's answer is unreadable: %w; update kubectl xsched", err)
			}
			if e.Error != "" {
				return errors.New(e.Error)
			}
			query.Set("since_ns", strconv.FormatInt(e.TimeNS+1, 10))
			return a.printEntry(&e.JournalEntry, asJSON)
		})
		if err != nil || ctx.Err() != nil || query.Get("follow") != "true" {
			return err
		}
		query.Set("max", strconv.Itoa(control.JournalMax))
	}
}

func (a *app) printEntry(e *control.JournalEntry, asJSON bool) error {
	var err error
	if asJSON {
		err = json.NewEncoder(a.stdout).Encode(e)
	} else {
		_, err = fmt.Fprintf(a.stdout, "%s  %-10s  %s\n", time.Unix(0, e.TimeNS).Format("2006-01-02 15:04:05.000"), screen.Clean(e.Kind), screen.Clean(e.Text))
	}
	if err != nil {
		return fmt.Errorf("print: %w", err)
	}
	return nil
}
