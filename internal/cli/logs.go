// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/user"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"xsched/internal/control"
	"xsched/internal/control/client"
	"xsched/internal/journal"
)

// logFilter selects entries of the journal.
type logFilter struct {
	since time.Time
	kinds []string
	user  string
}

func (f *logFilter) takes(e *control.JournalEntry) bool {
	return (f.since.IsZero() || e.TimeNS >= f.since.UnixNano()) &&
		(len(f.kinds) == 0 || slices.Contains(f.kinds, e.Kind)) &&
		(f.user == "" || f.user == e.User || f.user == strconv.Itoa(e.UID))
}

func logsCommand(a *app) *cobra.Command {
	var (
		follow, asJSON bool
		since, of      string
		kinds          []string
		lines          int
		file           string
	)
	c := &cobra.Command{
		Use:   "logs",
		Short: "Show what happened: preemptions, changes, faults",
		Long: `Show the journal of the daemon: who preempted whom, who changed what, faults, and
programs that joined or left. Names of other users' programs are hidden, except
from root.

The daemon keeps the newest entries in memory. --file reads the audit log, which
has older changes and faults; see ` + "`xsched serve --audit`" + `.`,
		Example: `  xsched logs
  xsched logs --follow --kind preemption
  xsched logs --since 10m --kind change,fault
  xsched logs --user alice --json
  sudo xsched logs --file /var/log/xsched/audit.log --since 2026-01-31`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if lines <= 0 || lines > control.JournalMax {
				return usagef("--lines %d is out of range; use 1 to %d", lines, control.JournalMax)
			}
			from, err := parseSince(since, time.Now())
			if err != nil {
				return err
			}
			for _, k := range kinds {
				if !slices.Contains(control.JournalKinds(), k) {
					return usagef("unknown kind %q; use %s", k, strings.Join(control.JournalKinds(), ", "))
				}
			}
			f := logFilter{from, kinds, of}
			write := logPrinter(a.stdout, asJSON)
			if file != "" {
				if follow {
					return usagef("--file and --follow exclude each other; use one")
				}
				return fileLogs(a, file, &f, lines, write)
			}
			return a.withClient(cmd.Context(), func(daemon *client.Client) error {
				return showLogs(cmd.Context(), daemon, &f, lines, follow, write)
			})
		},
	}
	c.Flags().BoolVarP(&follow, "follow", "f", false, "continue with new entries until interrupted")
	c.Flags().StringVar(&since, "since", "", "show entries after `TIME`: a duration like 10m, a date or a time (2026-01-31T15:04:05)")
	c.Flags().StringSliceVar(&kinds, "kind", nil, "show only these `KINDS`, separated by commas: "+strings.Join(control.JournalKinds(), ", "))
	c.Flags().StringVar(&of, "user", "", "show only entries of a `USER`, by name or uid: the author of a change, or the owner of the program")
	c.Flags().IntVarP(&lines, "lines", "n", 200, "show at most `N` entries, the newest ones")
	c.Flags().StringVar(&file, "file", "", "read the audit log in `FILE` instead of asking the daemon")
	jsonLines := "print one JSON object per line"
	c.Flags().BoolVar(&asJSON, "json", false, jsonLines)
	_ = c.RegisterFlagCompletionFunc("kind", cobra.FixedCompletions(control.JournalKinds(), cobra.ShellCompDirectiveNoFileComp))
	return c
}

// parseSince reads a duration before now, a date or a local time. Empty: the beginning.
func parseSince(text string, now time.Time) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	if d, err := time.ParseDuration(text); err == nil && d >= 0 {
		return now.Add(-d), nil
	}
	for _, layout := range []string{time.RFC3339, "2006-01-02T15:04:05", "2006-01-02 15:04:05", "2006-01-02 15:04", time.DateOnly} {
		if t, err := time.ParseInLocation(layout, text, now.Location()); err == nil {
			return t, nil
		}
	}
	return time.Time{}, usagef("%q is no time; use a duration like 10m or a date like 2026-01-31", text)
}

// logPrinter returns a function that prints an entry.
func logPrinter(w io.Writer, asJSON bool) func(*control.JournalEntry) error {
	if asJSON {
		return func(e *control.JournalEntry) error {
			b, err := json.Marshal(e)
			if err == nil {
				_, err = fmt.Fprintf(w, "%s\n", b)
			}
			return err
		}
	}
	return func(e *control.JournalEntry) error { return writeEntry(w, e, time.Local) }
}

// writeEntry prints an entry as one line.
func writeEntry(w io.Writer, e *control.JournalEntry, zone *time.Location) error {
	_, err := fmt.Fprintf(w, "%s  %-10s  %s\n", time.Unix(0, e.TimeNS).In(zone).Format("2006-01-02 15:04:05.000"), e.Kind, printable(e.Text))
	return err
}

// showLogs prints the newest entries of a daemon, and new ones if it follows.
func showLogs(ctx context.Context, daemon *client.Client, f *logFilter, lines int, follow bool, write func(*control.JournalEntry) error) error {
	j, err := daemon.Journal(ctx, control.JournalRequest{Max: control.JournalMax})
	if err != nil {
		return err
	}
	if err := printLast(j.Entries, f, lines, write); err != nil || !follow {
		return err
	}
	r := control.EventsRequest{EveryMS: 250, With: control.PartJournal, Since: j.Next}
	err = daemon.Events(ctx, r, func(name string, data []byte) error {
		var more control.Journal
		if name != control.PartJournal {
			return nil
		}
		if err := json.Unmarshal(data, &more); err != nil {
			return fmt.Errorf("read the daemon's reply: %w", err)
		}
		for i := range more.Entries {
			if f.takes(&more.Entries[i]) {
				if err := write(&more.Entries[i]); err != nil {
					return err
				}
			}
		}
		return nil
	})
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// checkUser refuses a name that is neither a user of this host nor in the journal: it has a typing error.
func (f *logFilter) checkUser(all []control.JournalEntry) error {
	if _, err := strconv.Atoi(f.user); f.user == "" || err == nil {
		return nil
	}
	if _, err := user.Lookup(f.user); err == nil || slices.ContainsFunc(all, func(e control.JournalEntry) bool { return e.User == f.user }) {
		return nil
	}
	return usagef("there is no user %q here; use a name or a uid, see the column USER of `xsched list`", f.user)
}

// printLast prints the newest entries that a filter takes.
func printLast(all []control.JournalEntry, f *logFilter, lines int, write func(*control.JournalEntry) error) error {
	if err := f.checkUser(all); err != nil {
		return err
	}
	all = slices.DeleteFunc(all, func(e control.JournalEntry) bool { return !f.takes(&e) })
	for i := max(0, len(all)-lines); i < len(all); i++ {
		if err := write(&all[i]); err != nil {
			return err
		}
	}
	return nil
}

// fileLogs prints the newest entries of an audit log.
func fileLogs(a *app, file string, f *logFilter, lines int, write func(*control.JournalEntry) error) error {
	var last []control.JournalEntry
	broken, err := journal.ReadFiles(file, func(e control.JournalEntry) {
		if !f.takes(&e) {
			return
		}
		if len(last) >= 2*lines {
			last = append(last[:0], last[len(last)-lines:]...)
		}
		last = append(last, e)
	})
	if err != nil {
		return err
	}
	if broken > 0 {
		a.warn("%d lines of %s are damaged", broken, file)
	}
	return printLast(last, f, lines, write)
}
