// SPDX-License-Identifier: Apache-2.0

package amd

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"xsched/internal/driver"
)

var _ driver.Inspector = kernelDriver{}

// Inspect reads sysfs and, with permission, debugfs.
func (kernelDriver) Inspect(root string, pid int) (driver.Inspection, error) {
	found, err := SourcesAt(root).Find(pid)
	switch {
	case err == nil:
		return &inspection{found: &found, notes: found.Notes}, nil
	case errors.Is(err, ErrAmbiguous):
		return nil, fmt.Errorf("%w; use one of those", err)
	}
	cause := strings.Join(strings.Fields(err.Error()), " ")
	for _, known := range []error{ErrNoDriver, ErrNotListed} {
		if errors.Is(err, known) {
			cause = known.Error()
		}
	}
	return &inspection{notes: []driver.Remark{{Source: "amdkfd", Text: cause}}}, nil
}

type inspection struct {
	found *Found // nil: unknown process
	notes []driver.Remark
}

func (i *inspection) Found() bool            { return i.found != nil }
func (i *inspection) Notes() []driver.Remark { return i.notes }
func (i *inspection) Data() any              { return i.found }

func (i *inspection) HostPID() int {
	if i.found == nil {
		return 0
	}
	return i.found.PID
}

// Join merges what the process's shim announced or its debugger sees.
func (i *inspection) Join(p driver.Process, queues []driver.HardwareQueue) {
	var announced []Announced
	for _, q := range queues {
		announced = append(announced, AnnouncedQueue(q.Device.String(), q.Kind, q.Details))
	}
	if len(announced) == 0 {
		return
	}
	if i.found == nil {
		i.found = &Found{PID: p.PID, PIDs: []int{p.PID}, Queues: []FoundQueue{}, Notes: []driver.Remark{}, Command: p.Command}
		if p.ClientPID != 0 && p.ClientPID != p.PID {
			i.found.PIDs = append(i.found.PIDs, p.ClientPID)
		}
	}
	before := len(i.found.Notes)
	i.found.JoinAnnounced(announced)
	i.notes = append(i.notes, i.found.Notes[before:]...)
}

// JoinLog merges a log, which may use any of the process's pids.
func (i *inspection) JoinLog(logged []driver.LoggedQueue) {
	if i.found == nil {
		return
	}
	var all []LoggedQueue
	for _, l := range logged {
		if l.PID == 0 || slices.Contains(i.found.PIDs, l.PID) {
			all = append(all, LoggedQueue{Ring: l.Ring, Software: l.Software, HSAID: l.ID, Priority: l.Priority, Kernels: l.Kernels})
		}
	}
	before := len(i.found.Notes)
	i.found.JoinLog(all)
	i.notes = append(i.notes, i.found.Notes[before:]...)
}

func (i *inspection) WriteTable(w io.Writer) {
	f := i.found
	if f == nil {
		return
	}
	fmt.Fprintf(w, "process %d on the host", f.PID)
	if n := len(f.PIDs); n > 1 {
		fmt.Fprintf(w, ", %d in its container", f.PIDs[n-1])
	}
	if f.Command != "" {
		fmt.Fprintf(w, ": %s", printable(f.Command))
	}
	fmt.Fprintln(w)
	table := driver.NewTable(w)
	fmt.Fprintln(table, "QUEUE\tTYPE\tGPU\tPCI\tTARGET\tRING\tBYTES\tREAD\tWRITE\tPRIO\tACTIVE\tLOADED\tKERNELS\tFROM")
	for _, q := range f.Queues {
		id, ring, kernels := "-", "-", "-"
		if q.ID >= 0 {
			id = strconv.Itoa(q.ID)
		}
		if q.Ring != 0 {
			ring = fmt.Sprintf("%#x", q.Ring)
		}
		if q.Log != nil {
			kernels = strconv.FormatUint(q.Log.Kernels, 10)
		}
		fmt.Fprintf(table, "%s\t%s\t%d\t%s\t%s\t%s\t%d\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", id, q.Type, q.GPUID, orDash(q.PCI), orDash(q.Target), ring, q.Bytes,
			number(q.Read, "-"), number(q.Write, "-"), number(q.Priority, "-"), yesNo(q.Active), yesNo(q.Loaded), kernels, strings.Join(q.Sources, "+"))
	}
	_ = table.Flush()
	if len(f.Queues) == 0 {
		fmt.Fprintln(w, "it has no queue now")
	}
}

// WritePython prints Python lists for test frameworks.
func (i *inspection) WritePython(w io.Writer) {
	var queues []FoundQueue
	if i.found != nil {
		queues = i.found.Queues
	}
	var ids []string
	for _, q := range queues {
		if q.ID >= 0 && q.Type == "compute" {
			ids = append(ids, strconv.Itoa(q.ID))
		}
	}
	fmt.Fprintf(w, "QUEUE_IDS = [%s]  # compute queues, as the driver numbers them\nQUEUES = [\n", strings.Join(ids, ", "))
	for _, q := range queues {
		id := "None"
		if q.ID >= 0 {
			id = strconv.Itoa(q.ID)
		}
		fmt.Fprintf(w, "    {\"queue_id\": %s, \"type\": \"%s\", \"gpu_id\": %d, \"ring\": %#x, \"bytes\": %d, \"rptr\": %s, \"wptr\": %s, \"priority\": %s},\n",
			id, q.Type, q.GPUID, q.Ring, q.Bytes, number(q.Read, "None"), number(q.Write, "None"), number(q.Priority, "None"))
	}
	fmt.Fprintln(w, "]")
}

// printable strips control characters for terminals.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, s)
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

func number[T uint32 | uint64](v *T, unknown string) string {
	if v == nil {
		return unknown
	}
	return strconv.FormatUint(uint64(*v), 10)
}

func yesNo(v *bool) string {
	switch {
	case v == nil:
		return "-"
	case *v:
		return "yes"
	}
	return "no"
}
