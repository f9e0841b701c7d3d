// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"xsched/internal/kube/fleetview"
	"xsched/internal/report"
	"xsched/internal/screen"
	"xsched/internal/top"
)

// listed is a list for JSON.
func listed(fleet *fleetview.Fleet, by string) any {
	type errors struct {
		Errors []fleetview.Node `json:"errors"`
	}
	lost := errors{append([]fleetview.Node{}, fleet.Errors()...)}
	if by == byPod {
		return struct {
			Pods []fleetview.PodUsage `json:"pods"`
			errors
		}{append([]fleetview.PodUsage{}, fleet.Pods()...), lost}
	}
	return struct {
		Tenants []fleetview.Tenant `json:"tenants"`
		errors
	}{append([]fleetview.Tenant{}, fleet.Tenants()...), lost}
}

// writeList prints the table and the nodes that do not answer; width 0 means unlimited.
func writeList(w io.Writer, fleet *fleetview.Fleet, by string, width int) {
	var text strings.Builder
	table := tabwriter.NewWriter(&text, 0, 4, 2, ' ', 0)
	rows, none := 0, "no tenants"
	if by == byPod {
		rows, none = writePods(table, fleet), "no programs in pods"
	} else {
		rows = writeTenants(table, fleet)
	}
	_ = table.Flush() // into memory
	writeLines(w, text.String(), width)
	if rows == 0 {
		fmt.Fprintln(w, none)
	}
	var lost fleetview.Remarks
	for _, n := range fleet.Errors() {
		lost.Add(n.Name, n.Error)
	}
	for _, line := range lost.Lines() {
		fmt.Fprintf(w, "error: %s\n", screen.Clean(line))
	}
}

// writeLines prints a table, each line cut to the width.
func writeLines(w io.Writer, table string, width int) {
	for line := range strings.Lines(table) {
		fmt.Fprintln(w, screen.Cut(screen.Clean(strings.TrimRight(line, "\n ")), width))
	}
}

func writeTenants(w io.Writer, fleet *fleetview.Fleet) int {
	fmt.Fprintln(w, "NODE\tNAMESPACE\tPOD\tCONTAINER\tCLASS\tPID\tPRIO\tSTATE\tGPU\tP99\tWAIT\tPREEMPTED\tRAN\tLOST\tKEPT\tCOMMAND")
	tenants := fleet.Tenants()
	for i := range tenants {
		t := &tenants[i]
		var p99, wait *float64
		if t.Latency.Certain() {
			p99, wait = &t.Latency.Total.P99US, &t.Latency.Wait.P99US
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%d\t%d\t%s\t%.0f%%\t%s\t%s\t%d\t%s\t%s\n", t.Node, dash(t.Namespace), dash(t.Pod), dash(t.PodContainer), dash(t.Class), t.PID,
			t.Priority, dash(t.State), 100*t.GPUShare, micros(p99), micros(wait), t.Preemptions, usage(&t.Usage, t.LostNS), top.Command(&t.Process))
	}
	return len(tenants)
}

func writePods(w io.Writer, fleet *fleetview.Fleet) int {
	fmt.Fprintln(w, "NODE\tNAMESPACE\tPOD\tCLASS\tPROGRAMS\tGPU\tP99\tWAIT\tPREEMPTED\tRAN\tLOST\tKEPT")
	pods := fleet.Pods()
	for i := range pods {
		p := &pods[i]
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%d\t%.0f%%\t%s\t%s\t%d\t%s\n", p.Node, dash(p.Namespace), p.Pod, dash(p.Class), p.Programs,
			100*p.GPUShare, micros(p.P99US), micros(p.WaitP99US), p.Preemptions, usage(&p.Usage, p.LostNS))
	}
	return len(pods)
}

// usage has three columns: the time that it ran, that it lost, and the part of both that it ran.
func usage(u *fleetview.Usage, lostNS int64) string {
	ran, lost := float64(u.RanNS)/1e3, float64(lostNS)/1e3
	kept := "-"
	if u.Kept != nil {
		kept = fmt.Sprintf("%.1f%%", 100**u.Kept)
	}
	return micros(&ran) + "\t" + micros(&lost) + "\t" + kept
}

// micros formats microseconds as one word; nil: unknown.
func micros(us *float64) string {
	if us == nil {
		return "-"
	}
	return strings.Replace(report.Micros(*us), " ", "", 1)
}
