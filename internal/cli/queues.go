// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"xsched/internal/control"
	"xsched/internal/control/client"
	"xsched/internal/driver"
	"xsched/internal/driver/registry"
	"xsched/internal/model"
)

// queuesReply is what `xsched queues` shows.
type queuesReply struct {
	asked   int
	names   []string                     // of drivers
	drivers map[string]driver.Inspection // by name
	process *control.Process             // as a daemon knows it; nil: none does
	notes   []driver.Remark
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
		Long: `Shows what each driver lists for the program. Some drivers show queues in sysfs,
with ring address, pointers and priority in debugfs, which needs root. LOADED says
whether a hardware slot has the queue now. PID may be the host's, or the one inside
a container.

With --log a log of the program's runtime adds streams and kernel counts, by ring
address.

For a program under a daemon: its contexts as the daemon schedules them, and its
hardware queues. Only the program's user and root see those.

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
				reply, err := a.findQueues(ctx, root, pid, logs)
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
	f.StringSliceVar(&logs, "log", nil, "a log of the program's runtime; may be given more than once")
	f.DurationVar(&watch, "watch", 0, "show them again every so often, until interrupted")
	f.StringVar(&root, "root", "/", "folder that has sys and proc in it: the virtual GPU's, or a copy of another machine's")
	_ = f.MarkHidden("root")
	jsonFlag(c, &asJSON)
	return c
}

// findQueues asks every driver and the daemon; it fails only if none knows the process.
func (a *app) findQueues(ctx context.Context, root string, pid int, logs []string) (*queuesReply, error) {
	r := &queuesReply{asked: pid, drivers: map[string]driver.Inspection{}, notes: []driver.Remark{}}
	logged, err := a.readLogs(ctx, logs)
	if err != nil {
		return nil, interrupted(ctx, err)
	}
	for _, d := range registry.All() {
		inspector, ok := d.(driver.Inspector)
		if !ok {
			continue
		}
		i, err := inspector.Inspect(root, pid)
		if err != nil {
			return nil, err
		}
		i.JoinLog(logged)
		r.names, r.drivers[d.Name()] = append(r.names, d.Name()), i
	}
	r.process, err = a.processOf(ctx, pid, r)
	if err == nil {
		err = a.joinDaemonQueues(ctx, r)
	}
	known := r.process != nil
	for _, name := range r.names {
		known = known || r.drivers[name].Found()
		r.notes = append(r.notes, r.drivers[name].Notes()...)
	}
	if err != nil {
		r.notes = append(r.notes, driver.Remark{Source: "daemon", Text: oneLine(err.Error())})
	}
	if !known {
		var why []string
		for _, n := range r.notes {
			why = append(why, n.Source+": "+n.Text)
		}
		return nil, fmt.Errorf("no queues of process %d are known (%s); give the PID of a program that uses a GPU", pid, strings.Join(why, ", "))
	}
	return r, nil
}

// hostPID is the process as the host numbers it, if a driver knows.
func (r *queuesReply) hostPID() int {
	for _, i := range r.drivers {
		if pid := i.HostPID(); pid != 0 {
			return pid
		}
	}
	return r.asked
}

// processOf asks the daemon for the process under any of its numbers.
func (a *app) processOf(ctx context.Context, pid int, r *queuesReply) (*control.Process, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	var process *control.Process
	err := a.withClient(ctx, func(client *client.Client) error {
		list, err := client.List(ctx)
		if err != nil {
			return err
		}
		for i, p := range list.Processes {
			if p.PID == pid || p.PID == r.hostPID() {
				process = &list.Processes[i]
				return nil
			}
		}
		return fmt.Errorf("process %d has not joined", pid)
	})
	return process, err
}

// joinDaemonQueues gives each driver what the daemon knows of the process's hardware queues.
func (a *app) joinDaemonQueues(ctx context.Context, r *queuesReply) error {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	var known control.HardwareQueues
	err := a.withClient(ctx, func(client *client.Client) (err error) {
		known, err = client.Queues(ctx, r.process.PID)
		return err
	})
	if err != nil {
		return err
	}
	queues := map[string][]driver.HardwareQueue{}
	for _, q := range known.Queues {
		id, err := model.ParseDeviceID(q.Device)
		if err != nil {
			return err
		}
		queues[q.Driver] = append(queues[q.Driver], driver.HardwareQueue{
			Driver: q.Driver, Device: id, Kind: q.Kind, ID: q.ID, Stopped: q.Stopped, Details: q.Details,
		})
	}
	p := driver.Process{PID: r.process.PID, ClientPID: r.process.ClientPID, Command: r.process.Command}
	for name, i := range r.drivers {
		i.Join(p, queues[name])
	}
	return nil
}

func (a *app) showQueues(r *queuesReply, format string) error {
	switch format {
	case "json":
		return a.printJSON(r.data())
	case "python":
		fmt.Fprintf(a.stdout, "# xsched queues %d --format python\nPID = %d\n", r.asked, r.hostPID())
		for _, name := range r.names {
			r.drivers[name].WritePython(a.stdout)
		}
	default:
		r.write(a.stdout)
	}
	return nil
}

// data is what --json prints: each driver's part is under its name.
func (r *queuesReply) data() map[string]any {
	out := map[string]any{"asked_pid": r.asked, "notes": r.notes}
	if r.process != nil {
		out["daemon"] = r.process
	}
	for name, i := range r.drivers {
		if i.Found() {
			out[name] = i.Data()
		}
	}
	return out
}

func (r *queuesReply) write(w io.Writer) {
	for _, name := range r.names {
		r.drivers[name].WriteTable(w)
	}
	if p := r.process; p != nil {
		table := newTable(w)
		fmt.Fprintln(table, "CONTEXT\tDEVICE\tLEVEL\tSTATE\tSCHED\tSLICE")
		for _, q := range p.Queues {
			fmt.Fprintf(table, "%d\t%s\t%s\t%s\t%s\t%s\n", q.Index, q.Device, levelText(q.Level)+routeText(q.Route), busyText(q.Busy), schedText(q.State, p.Held), sliceText(q))
		}
		_ = table.Flush()
	}
	for _, n := range r.notes {
		fmt.Fprintf(w, "note: %s: %s\n", n.Source, printable(n.Text))
	}
}
