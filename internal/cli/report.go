// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"encoding/csv"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"xsched/internal/control"
	"xsched/internal/control/client"
	"xsched/internal/report"
)

func reportCommand(a *app) *cobra.Command {
	var (
		r                    control.ReportRequest
		asCSV, asJSON, asWeb bool
	)
	c := &cobra.Command{
		Use:   "report",
		Short: "Show who used how much of the GPUs, for chargeback",
		Long: `Show what programs used of the GPUs since a time, by user, group, pod, program or GPU:
time on GPUs and its share of all GPU time, time waited while others ran, requests,
and how many of those with a latency target met it. Users get their own rows, root and
the daemon's user those of all.

The daemon keeps the last week by the hour and three months by the day. Programs that
it does not manage are not in the report.`,
		Example: `  xsched report
  xsched report --since 12h --by program
  sudo xsched report --since 30d --by group --csv >month.csv
  sudo xsched report --since 30d --by pod --html >month.html`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if _, err := control.ReportLength(r.Since); err != nil {
				return usagef("--since: %v", err)
			}
			if !slices.Contains(control.ReportKinds(), r.By) {
				return usagef("unknown kind %q; use %s", r.By, strings.Join(control.ReportKinds(), ", "))
			}
			if asCSV && asJSON || asCSV && asWeb || asJSON && asWeb {
				return usagef("--csv, --json and --html exclude each other; use one")
			}
			return a.withClient(cmd.Context(), func(daemon *client.Client) error {
				reply, err := daemon.Report(cmd.Context(), r)
				switch {
				case err != nil:
					return err
				case asJSON:
					return a.printJSON(reply)
				case asCSV:
					return writeReportCSV(a.stdout, &reply)
				case asWeb:
					return reportPage(&reply, time.Local).Write(a.stdout)
				}
				return writeReport(a.stdout, &reply, time.Local)
			})
		},
	}
	c.Flags().StringVar(&r.Since, "since", control.ReportSince, "`TIME` of the report: a duration like 12h or 30d")
	c.Flags().StringVar(&r.By, "by", control.ByUser, "one row per `KIND`: "+strings.Join(control.ReportKinds(), ", "))
	jsonFlag(c, &asJSON)
	c.Flags().BoolVar(&asCSV, "csv", false, "print comma-separated values, times in seconds")
	c.Flags().BoolVar(&asWeb, "html", false, "print a web page without other files")
	_ = c.RegisterFlagCompletionFunc("by", cobra.FixedCompletions(control.ReportKinds(), cobra.ShellCompDirectiveNoFileComp))
	return c
}

// reportNames are the columns that name a row, by the kind of the report.
var reportNames = map[string][]string{
	control.ByUser: {"user"}, control.ByGroup: {"group"}, control.ByPod: {"pod", "user"}, control.ByProgram: {"program", "user"}, control.ByGPU: {"gpu"},
}

func reportName(r *control.ReportRow, column string) string {
	if column == "user" {
		return r.User
	}
	return r.Name(column)
}

// reportTable has a row per name, and the total.
func reportTable(r *control.Report) *report.Table {
	names := reportNames[r.By]
	t := &report.Table{Left: len(names)}
	for _, n := range names {
		t.Head = append(t.Head, strings.ToUpper(n))
	}
	t.Head = append(t.Head, "GPU TIME", "SHARE", "OPEN", "WAITED", "REQUESTS", "SLO KEPT")
	add := func(row *control.ReportRow, cells ...string) {
		kept := "-"
		if row.Judged > 0 {
			kept = report.Percent(float64(row.Met) / float64(row.Judged))
		}
		share := "-"
		if r.CapacityNS > 0 {
			share = report.Percent(row.Share)
		}
		t.Add(append(cells, hours(row.GPUNS), share, hours(row.OpenNS), hours(row.WaitedNS), report.Count(float64(row.Requests)), kept)...)
	}
	for i := range r.Rows {
		row, cells, none := &r.Rows[i], make([]string, 0, len(names)), "(other)"
		if row.Pod+row.User != "" && r.By == control.ByPod {
			none = "-" // of several users, or of no pod
		}
		for _, n := range names {
			cells = append(cells, cmp.Or(printable(reportName(row, n)), none))
		}
		add(row, cells...)
	}
	add(&r.Total, append([]string{"total"}, make([]string, len(names)-1)...)...)
	return t
}

// hours writes nanoseconds as 123:45:06.
func hours(ns int64) string {
	s := (ns + 5e8) / 1e9
	return fmt.Sprintf("%d:%02d:%02d", s/3600, s/60%60, s%60)
}

// reportTitle says which time and whose rows a report has.
func reportTitle(r *control.Report, zone *time.Location) string {
	at := func(ns int64) string { return time.Unix(0, ns).In(zone).Format("2006-01-02 15:04") }
	text := fmt.Sprintf("%s to %s; the daemon ran for %s", at(r.FromNS), at(r.ToNS), hours(r.WatchedNS))
	if r.WatchedNS > 0 {
		text += fmt.Sprintf(" with %s GPUs", strconv.FormatFloat(float64(r.CapacityNS)/float64(r.WatchedNS), 'g', 3, 64))
	}
	if r.Own {
		text += "; only programs of this user"
	}
	return text
}

func writeReport(w io.Writer, r *control.Report, zone *time.Location) error {
	if _, err := fmt.Fprintln(w, reportTitle(r, zone)); err != nil {
		return err
	}
	return reportTable(r).WriteText(w, "")
}

func reportPage(r *control.Report, zone *time.Location) *report.Page {
	p := &report.Page{Title: "GPU usage by " + r.By}
	p.Add(report.Block{Text: reportTitle(r, zone), Table: reportTable(r), Caption: "Times are hours, minutes and seconds. The share is of the time of all GPUs while the daemon ran."})
	return p
}

// writeReportCSV writes one line per row. A spreadsheet adds them up, so there is no total.
func writeReportCSV(w io.Writer, r *control.Report) error {
	out, names := csv.NewWriter(w), reportNames[r.By]
	lines := [][]string{append(slices.Clone(names), "gpu_seconds", "share", "open_seconds", "waited_seconds", "requests", "judged", "met")}
	seconds := func(ns int64) string { return strconv.FormatFloat(float64(ns)/1e9, 'f', 3, 64) }
	for i := range r.Rows {
		row, cells := &r.Rows[i], make([]string, 0, len(lines[0]))
		for _, n := range names {
			cells = append(cells, csvText(reportName(row, n)))
		}
		count := func(n int64) string { return strconv.FormatInt(n, 10) }
		lines = append(lines, append(cells, seconds(row.GPUNS), strconv.FormatFloat(row.Share, 'f', 6, 64), seconds(row.OpenNS), seconds(row.WaitedNS), count(row.Requests), count(row.Judged), count(row.Met)))
	}
	return out.WriteAll(lines)
}

// csvText keeps a spreadsheet from taking a name for a formula: programs choose their names.
func csvText(s string) string {
	if s = printable(s); s != "" && strings.ContainsRune("=+-@", rune(s[0])) {
		return "'" + s
	}
	return s
}
