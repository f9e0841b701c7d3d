// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"xsched/internal/control/client"
	"xsched/internal/window"
)

// shownDisplay and shownWindow are the JSON form of `window list`.
type shownDisplay struct {
	Display string        `json:"display"`
	Manager bool          `json:"window_manager"`
	Windows []shownWindow `json:"windows"`
}

type shownWindow struct {
	ID       string `json:"id"`
	Active   bool   `json:"active"`
	Dialog   bool   `json:"dialog_open"` // it has the active window as a dialog
	PID      int    `json:"pid"`
	Reason   string `json:"reason,omitempty"`
	Programs []int  `json:"programs"`
	Title    string `json:"title"`
}

func windowListCommand(a *app) *cobra.Command {
	var (
		displays []string
		asJSON   bool
	)
	c := &cobra.Command{
		Use:   "list",
		Short: "Show which programs belong to which window",
		Long: `List the windows of a display. A star marks the active window, and a plus sign a
window that the active one is a dialog of. PROGRAMS are the PIDs of your programs
that ` + "`xsched window follow`" + ` would prefer while that window is active.`,
		Example: `  xsched window list
  xsched window list --display :1 --json`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			names, err := displayNames(displays, false)
			if err != nil {
				return err
			}
			programs, err := ownPrograms(cmd.Context(), a)
			if err != nil {
				return err
			}
			var shown []shownDisplay
			for _, name := range names() {
				display, err := readDisplay(name, programs)
				if err != nil {
					return err
				}
				shown = append(shown, display)
			}
			return a.show(shown, nil, asJSON, func(w io.Writer) { writeWindows(w, shown, columns(a.stdout)) })
		},
	}
	displayFlag(c, &displays)
	jsonFlag(c, &asJSON)
	return c
}

// ownPrograms returns the PIDs of the caller's programs; none without a daemon.
func ownPrograms(ctx context.Context, a *app) ([]int, error) {
	daemon := &windowScheduler{app: a}
	defer daemon.close()
	programs, err := daemon.Programs(ctx)
	if err != nil && !errors.Is(err, client.ErrNoDaemon) {
		return nil, err
	}
	if err != nil {
		a.warn("no programs are shown: %s", oneLine(err.Error()))
	}
	var pids []int
	for _, p := range programs {
		pids = append(pids, p.PID)
	}
	return pids, nil
}

func readDisplay(name string, programs []int) (shownDisplay, error) {
	display, err := window.Open(name)
	if err != nil {
		return shownDisplay{}, err
	}
	defer display.Close()
	state, err := display.State(true)
	if err != nil {
		return shownDisplay{}, fmt.Errorf("read display %s: %w", name, err)
	}
	shown := shownDisplay{Display: display.Name(), Manager: state.Manager, Windows: []shownWindow{}}
	for _, w := range state.Windows {
		of := state
		of.Active = []window.ID{w.ID}
		row := shownWindow{
			ID: w.ID.String(), PID: w.PID, Reason: w.Reason, Title: w.Title,
			Programs: append([]int{}, window.Members(display.Name(), &of, programs, window.Host())...),
		}
		if at := slices.Index(state.Active, w.ID); at >= 0 {
			row.Active, row.Dialog = at == 0, at > 0
		}
		if w.Shell {
			row.Reason = "part of the desktop"
		}
		shown.Windows = append(shown.Windows, row)
	}
	return shown, nil
}

func writeWindows(w io.Writer, displays []shownDisplay, width int) {
	for _, d := range displays {
		fmt.Fprintf(w, "display %s, ", printable(d.Display))
		if d.Manager {
			fmt.Fprintln(w, "active window by the window manager")
		} else {
			fmt.Fprintln(w, "no window manager, active window by the keyboard focus")
		}
		var text strings.Builder
		table := newTable(&text)
		fmt.Fprintln(table, "\tWINDOW\tPID\tPROGRAMS\tTITLE")
		for _, row := range d.Windows {
			mark, pid, programs := "", "-", "-"
			switch {
			case row.Active:
				mark = "*"
			case row.Dialog:
				mark = "+"
			}
			if row.PID != 0 {
				pid = fmt.Sprint(row.PID)
			}
			if len(row.Programs) > 0 {
				programs = strings.Trim(fmt.Sprint(row.Programs), "[]")
			}
			title := printable(row.Title)
			if row.Reason != "" {
				title += " (" + printable(row.Reason) + ")"
			}
			fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\n", mark, row.ID, pid, programs, title)
		}
		_ = table.Flush() // into memory
		for line := range strings.Lines(text.String()) {
			fmt.Fprintln(w, cut(strings.TrimRight(line, "\n "), width))
		}
	}
}
