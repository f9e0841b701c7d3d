// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"xsched/internal/control"
	"xsched/internal/control/client"
	"xsched/internal/driver/amd"
)

// queuesReply is what `xsched queues --json` prints.
type queuesReply struct {
	Asked int        `json:"asked_pid"`
	AMD   *amd.Found `json:"amd,omitempty"`
	// Daemon is what a daemon knows of the process: its contexts, on any GPU.
	Daemon *control.Process `json:"daemon,omitempty"`
	// NVIDIA is its channel groups and channels, as the daemon knows them.
	NVIDIA []control.HardwareQueue `json:"nvidia,omitempty"`
	Notes  []amd.Note              `json:"notes"`
}

func (a *app) queuesCommand() *cobra.Command {
	var (
		asJSON bool
		format string
		watch  time.Duration
		root   string
		logs   []string
	)
	c := &cobra.Command{
		Use:   "queues PID",
		Short: "Show a program's hardware queues",
		Long: `On AMD GPUs: the queues that the driver lists for the program (sysfs), with ring
address, pointers and priority from the driver's dumps (debugfs, needs root). RING
is what the runtime's log calls HWq. PID may be the host's, or the one inside a
container. LOADED says whether a hardware slot has the queue now.

With --log the runtime's own log (AMD_LOG_LEVEL=4) adds streams and kernel counts, by ring address.

Of a program under a daemon, on any GPU: its contexts as the daemon schedules them, its
AMD queues as its own library announced them, and its NVIDIA channel groups and channels.
Hardware queues are told to the program's user and root only.

What could not be read is named, and the rest is shown.`,
		Example: `  sudo xsched queues 4711
  xsched queues 4711 --json
  xsched queues 4711 --format python > queues.py
  xsched queues 4711 --watch 1s`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			pid, err := strconv.Atoi(args[0])
			if err != nil || pid <= 0 {
				return usagef("%q is no process number", args[0])
			}
			if asJSON {
				format = "json"
			}
			if format != "table" && format != "json" && format != "python" {
				return usagef("format %q is unknown; use table, json or python", format)
			}
			if watch < 0 {
				return usagef("--watch can't be negative")
			}
			ctx, stop := untilSignal(cmd.Context())
			defer stop()
			for {
				reply, err := a.findQueues(ctx, amd.SourcesAt(root), pid, logs)
				if err != nil {
					return err
				}
				if err := a.showQueues(reply, format); err != nil {
					return err
				}
				if watch == 0 {
					return nil
				}
				select {
				case <-ctx.Done():
					return nil
				case <-time.After(watch):
				}
			}
		},
	}
	f := c.Flags()
	f.StringVar(&format, "format", "table", "table, json or python")
	f.StringSliceVar(&logs, "log", nil, "a log of the program's HIP runtime; may be given more than once")
	f.DurationVar(&watch, "watch", 0, "show them again every so often, until interrupted")
	f.StringVar(&root, "root", "/", "folder that has sys and proc in it: the virtual GPU's, or a copy of another machine's")
	_ = f.MarkHidden("root")
	jsonFlag(c, &asJSON)
	return c
}

// findQueues asks every source; it fails only if none knows the process.
func (a *app) findQueues(ctx context.Context, s amd.Sources, pid int, logs []string) (queuesReply, error) {
	reply := queuesReply{Asked: pid, Notes: []amd.Note{}}
	found, err := s.Find(pid)
	switch {
	case err == nil:
		if err := a.joinLogs(ctx, &found, logs); err != nil {
			return reply, err
		}
		reply.AMD = &found
		reply.Notes = append(reply.Notes, found.Notes...)
	case errors.Is(err, amd.ErrAmbiguous):
		return reply, fmt.Errorf("%w; use one of those", err)
	default:
		reply.Notes = append(reply.Notes, amd.Note{Source: "amdkfd", Text: lastCause(err)})
	}
	process, err := a.processOf(ctx, pid, reply.AMD)
	if err != nil {
		reply.Notes = append(reply.Notes, amd.Note{Source: "daemon", Text: oneLine(err.Error())})
	}
	if reply.Daemon = process; process != nil {
		a.joinDaemonQueues(ctx, &reply)
	}
	if reply.AMD == nil && process == nil {
		var why []string
		for _, n := range reply.Notes {
			why = append(why, n.Source+": "+n.Text)
		}
		return reply, fmt.Errorf("no queues of process %d are known (%s); give the PID of a program that uses a GPU", pid, strings.Join(why, ", "))
	}
	return reply, nil
}

func lastCause(err error) string {
	for _, known := range []error{amd.ErrNoDriver, amd.ErrNotListed} {
		if errors.Is(err, known) {
			return known.Error()
		}
	}
	return oneLine(err.Error())
}

// processOf asks the daemon for the process under any of its numbers.
func (a *app) processOf(ctx context.Context, pid int, found *amd.Found) (*control.Process, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	var process *control.Process
	err := a.withClient(ctx, func(client *client.Client) error {
		list, err := client.List(ctx)
		if err != nil {
			return err
		}
		for i, p := range list.Processes {
			if p.PID == pid || found != nil && p.PID == found.PID {
				process = &list.Processes[i]
				return nil
			}
		}
		return fmt.Errorf("process %d has not joined", pid)
	})
	return process, err
}

func (a *app) showQueues(reply queuesReply, format string) error {
	switch format {
	case "json":
		return a.printJSON(reply)
	case "python":
		writeQueuesPython(a.stdout, reply)
	default:
		writeQueues(a.stdout, reply)
	}
	return nil
}

func writeQueues(w io.Writer, reply queuesReply) {
	if f := reply.AMD; f != nil {
		fmt.Fprintf(w, "process %d on the host", f.PID)
		if n := len(f.PIDs); n > 1 {
			fmt.Fprintf(w, ", %d in its container", f.PIDs[n-1])
		}
		if f.Command != "" {
			fmt.Fprintf(w, ": %s", printable(f.Command))
		}
		fmt.Fprintln(w)
		table := newTable(w)
		fmt.Fprintln(table, "QUEUE\tTYPE\tGPU\tPCI\tTARGET\tRING\tBYTES\tREAD\tWRITE\tPRIO\tACTIVE\tLOADED\tKERNELS\tFROM")
		for _, q := range f.Queues {
			id, ring := "-", "-"
			if q.ID >= 0 {
				id = strconv.Itoa(q.ID)
			}
			if q.Ring != 0 {
				ring = fmt.Sprintf("%#x", q.Ring)
			}
			fmt.Fprintf(table, "%s\t%s\t%d\t%s\t%s\t%s\t%d\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", id, q.Type, q.GPUID, orDash(q.PCI), orDash(q.Target), ring, q.Bytes,
				known(q.Read), known(q.Write), known(q.Priority), knownYesNo(q.Active), knownYesNo(q.Loaded), loggedKernels(q), strings.Join(q.Sources, "+"))
		}
		_ = table.Flush()
		if len(f.Queues) == 0 {
			fmt.Fprintln(w, "it has no queue now")
		}
	}
	if p := reply.Daemon; p != nil {
		table := newTable(w)
		fmt.Fprintln(table, "CONTEXT\tDEVICE\tLEVEL\tSTATE\tSCHED\tSLICE")
		for _, q := range p.Queues {
			fmt.Fprintf(table, "%d\t%s\t%s\t%s\t%s\t%s\n", q.Index, q.Device, levelText(q.Level)+routeText(q.Route), busyText(q.Busy), schedText(q.State, p.Held), sliceText(q))
		}
		_ = table.Flush()
	}
	writeChannels(w, reply.NVIDIA)
	for _, n := range reply.Notes {
		fmt.Fprintf(w, "note: %s: %s\n", n.Source, printable(n.Text))
	}
}

func loggedKernels(q amd.FoundQueue) string {
	if q.Log == nil {
		return "-"
	}
	return strconv.FormatUint(q.Log.Kernels, 10)
}

// joinLogs reads the runtime's logs; a log may name the process by any of its numbers.
func (a *app) joinLogs(ctx context.Context, f *amd.Found, names []string) error {
	var all []amd.LoggedQueue
	for _, name := range names {
		log, err := a.readAMDLog(ctx, name)
		if err != nil {
			return interrupted(ctx, err)
		}
		for _, p := range log.Processes {
			if p.PID != 0 && !slices.Contains(f.PIDs, int(p.PID)) {
				continue
			}
			for _, q := range p.Queues {
				ring, err := strconv.ParseUint(strings.TrimPrefix(q.HWq, "0x"), 16, 64)
				if err != nil {
					continue
				}
				all = append(all, amd.LoggedQueue{Ring: ring, Software: q.SWq, HSAID: q.ID, Priority: q.Priority, Kernels: q.Kernels})
			}
		}
	}
	f.JoinLog(all)
	return nil
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

func known[T uint32 | uint64](v *T) string {
	if v == nil {
		return "-"
	}
	return strconv.FormatUint(uint64(*v), 10)
}

func knownYesNo(v *bool) string {
	if v == nil {
		return "-"
	}
	return yesNo(*v)
}

// writeQueuesPython prints a module that a test framework can import.
func writeQueuesPython(w io.Writer, reply queuesReply) {
	fmt.Fprintf(w, "# xsched queues %d --format python\n", reply.Asked)
	pid := reply.Asked
	var ids []string
	if reply.AMD != nil {
		pid = reply.AMD.PID
		for _, q := range reply.AMD.Queues {
			if q.ID >= 0 && q.Type == "compute" {
				ids = append(ids, strconv.Itoa(q.ID))
			}
		}
	}
	fmt.Fprintf(w, "PID = %d\nQUEUE_IDS = [%s]  # compute queues, as the driver numbers them\nQUEUES = [\n", pid, strings.Join(ids, ", "))
	if reply.AMD != nil {
		for _, q := range reply.AMD.Queues {
			id := "None"
			if q.ID >= 0 {
				id = strconv.Itoa(q.ID)
			}
			fmt.Fprintf(w, "    {\"queue_id\": %s, \"type\": \"%s\", \"gpu_id\": %d, \"ring\": %#x, \"bytes\": %d, \"rptr\": %s, \"wptr\": %s, \"priority\": %s},\n",
				id, q.Type, q.GPUID, q.Ring, q.Bytes, pythonNumber(q.Read), pythonNumber(q.Write), pythonNumber(q.Priority))
		}
	}
	fmt.Fprintln(w, "]")
	writeChannelsPython(w, reply.NVIDIA)
}

func pythonNumber[T uint32 | uint64](v *T) string {
	if v == nil {
		return "None"
	}
	return known(v)
}
