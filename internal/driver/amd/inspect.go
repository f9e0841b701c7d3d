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

// Inspect reads sysfs and, with permission, debugfs, or saved copies of them.
func (kernelDriver) Inspect(from driver.InspectionSource, pid int) (driver.Inspection, error) {
	i := &inspection{pid: pid}
	sources, err := sourcesFrom(from)
	if err != nil {
		return nil, err
	}
	found, err := sources.Find(pid)
	switch {
	case err == nil:
		i.found, i.notes = &found, found.Notes
		return i, nil
	case errors.Is(err, ErrAmbiguous):
		return nil, fmt.Errorf("%w; use one of those", err)
	}
	cause := strings.Join(strings.Fields(err.Error()), " ")
	for _, known := range []error{ErrNoDriver, ErrNotListed, ErrNotDumped, ErrCut} {
		if errors.Is(err, known) {
			cause = known.Error()
		}
	}
	i.notes = []driver.Remark{{Source: "amdkfd", Text: cause}}
	return i, nil
}

type inspection struct {
	pid   int    // as asked
	found *Found // nil: unknown process
	notes []driver.Remark
}

func (i *inspection) Found() bool { return i.found != nil }
func (i *inspection) Data() any   { return i.found }

func (i *inspection) HostPID() int {
	if i.found == nil || !i.found.Listed {
		return 0
	}
	return i.found.PID
}

// Notes adds the queues whose ring is unknown and why.
func (i *inspection) Notes() []driver.Remark {
	if i.found == nil {
		return i.notes
	}
	var reasons []string
	ids := map[string][]string{}
	for _, q := range i.found.Queues {
		if q.Ring != 0 || q.ID < 0 {
			continue
		}
		if ids[q.Unknown] == nil {
			reasons = append(reasons, q.Unknown)
		}
		ids[q.Unknown] = append(ids[q.Unknown], strconv.Itoa(q.ID))
	}
	out := slices.Clone(i.notes)
	for _, reason := range reasons {
		out = append(out, driver.Remark{Source: "ring", Text: "unknown for queues " + strings.Join(ids[reason], ", ") + ": " + reason})
	}
	return out
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

// JoinLog merges a log, which may use any of the process's pids. For a process that the driver does
// not list, the log is the only source.
func (i *inspection) JoinLog(logged []driver.LoggedQueue) {
	pids := []int{i.pid}
	if i.found != nil {
		pids = append(pids, i.found.PIDs...)
	}
	all, remark := selectLogged(pids, logged)
	if remark != "" {
		i.notes = append(i.notes, driver.Remark{Source: "log", Text: remark})
	}
	if len(all) == 0 {
		return
	}
	before := 0
	if i.found == nil {
		i.found = foundInLog(i.pid, all)
	} else {
		before = len(i.found.Notes)
		i.found.JoinLog(all)
	}
	i.notes = append(i.notes, i.found.Notes[before:]...)
}

func (i *inspection) WriteTable(w io.Writer) {
	f := i.found
	if f == nil {
		return
	}
	switch {
	case f.Listed:
		fmt.Fprintf(w, "process %d on the host", f.PID)
	default:
		fmt.Fprintf(w, "process %d", f.PID)
	}
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
		id, ring, bytes, kernels, priority, gpu := unknown, unknown, "-", "-", number(q.Priority, "-"), unknown
		if q.ID >= 0 {
			id = strconv.Itoa(q.ID)
		}
		if q.Ring != 0 {
			ring = fmt.Sprintf("%#x", q.Ring)
		}
		if q.Bytes != 0 {
			bytes = strconv.FormatUint(q.Bytes, 10)
		}
		if q.GPUID != 0 {
			gpu = strconv.FormatUint(uint64(q.GPUID), 10)
		}
		from := strings.Join(q.Sources, "+")
		if q.Log != nil {
			kernels = number(q.Log.Kernels, "-")
			if q.Priority == nil && q.Log.Priority != "" {
				priority = q.Log.Priority
			}
			if q.Log.Deleted {
				from += " (deleted)"
			}
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", id, q.Type, gpu, orDash(q.PCI), orDash(q.Target), ring, bytes,
			number(q.Read, "-"), number(q.Write, "-"), priority, yesNo(q.Active), yesNo(q.Loaded), kernels, from)
	}
	_ = table.Flush()
	if len(f.Queues) == 0 {
		fmt.Fprintln(w, "it has no queue now")
	}
}

// unknown stands for a queue number or ring that no source proves.
const unknown = "unknown"

// WritePython prints Python lists for test frameworks. None stands for what no source proves.
func (i *inspection) WritePython(w io.Writer) {
	var queues []FoundQueue
	if i.found != nil {
		queues = i.found.Queues
	}
	var ids, rings []string
	for _, q := range queues {
		if q.Type != string(KindCompute) {
			continue
		}
		if q.ID >= 0 {
			ids = append(ids, strconv.Itoa(q.ID))
		}
		if q.Ring != 0 && (q.Log == nil || !q.Log.Deleted || !i.found.Listed) {
			rings = append(rings, fmt.Sprintf("%#x", q.Ring))
		}
	}
	fmt.Fprintf(w, "QUEUE_IDS = [%s]  # compute queues, as the driver numbers them\n", strings.Join(ids, ", "))
	fmt.Fprintf(w, "RINGS = [%s]  # addresses of compute queues, HWq in the runtime's log\nQUEUES = [\n", strings.Join(rings, ", "))
	for _, q := range queues {
		id, gpu, ring, hsa, class, kernels, deleted := "None", "None", "None", "None", "None", "None", "False"
		if q.ID >= 0 {
			id = strconv.Itoa(q.ID)
		}
		if q.Ring != 0 {
			ring = fmt.Sprintf("%#x", q.Ring)
		}
		if q.GPUID != 0 {
			gpu = strconv.FormatUint(uint64(q.GPUID), 10)
		}
		if q.Log != nil {
			kernels = number(q.Log.Kernels, "None")
			if q.Log.Priority != "" {
				class = strconv.Quote(q.Log.Priority)
			}
			if q.Log.HSAID >= 0 {
				hsa = strconv.Itoa(int(q.Log.HSAID))
			}
			if q.Log.Deleted {
				deleted = "True"
			}
		}
		fmt.Fprintf(w, "    {\"queue_id\": %s, \"type\": \"%s\", \"gpu_id\": %s, \"ring\": %s, \"bytes\": %d, \"rptr\": %s, \"wptr\": %s, \"priority\": %s, \"log_priority\": %s, \"hsa_id\": %s, \"kernels\": %s, \"deleted\": %s},\n",
			id, q.Type, gpu, ring, q.Bytes, number(q.Read, "None"), number(q.Write, "None"), number(q.Priority, "None"), class, hsa, kernels, deleted)
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
