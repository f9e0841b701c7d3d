// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"xsched/internal/atomicfile"
	"xsched/internal/control"
	"xsched/internal/control/client"
	"xsched/internal/driver"
	"xsched/internal/driver/registry"
	"xsched/internal/model"
	"xsched/internal/top"
)

// queuesReply is the result of `xsched queues`.
type queuesReply struct {
	asked   int
	names   []string                     // of the drivers
	drivers map[string]driver.Inspection // by name
	process *control.Process             // nil if it is not managed
	notes   []driver.Remark
}

// queueListing is the command queues.
type queueListing struct {
	app    *app
	asJSON bool
	format string
	save   bool
	watch  bool
	every  time.Duration
	logs   []string
	from   driver.InspectionSource
}

func queuesCommand(a *app) *cobra.Command {
	q := &queueListing{app: a}
	c := &cobra.Command{
		Use:   "queues PID [LOG...]",
		Short: "Show the hardware queues of a program",
		Long: `List the hardware queues that each driver reports for the program. Some drivers
list queues in sysfs, and ring address, pointers and priority in debugfs, which
requires root. LOADED says whether the queue occupies a hardware slot. PID may be
the host's or the container's. A queue number or ring that no source proves is
"unknown", and a note says why.

LOG is a log of the program's runtime. It adds streams and kernel counts, matched
by ring address. For a program that has ended, the log alone is shown.

--dump reads saved files of the driver instead of this machine's, --root a copy of
another machine's /sys and /proc. A copy has no creation order, so rings of equal
size stay unknown.

For a managed program, also list its contexts and the hardware queues that the
daemon knows. Only the program's user and root may see hardware queues.

Sources that can't be read are reported as notes.`,
		Example: `  sudo xsched queues 4711
  xsched queues 4711 app.log_4711
  xsched queues 4711 app.log_4711 --save
  xsched queues 4711 --dump mqds.txt --dump hqds.txt.gz
  xsched queues 4711 --format python > queues.py
  xsched queues 4711 --watch --interval 5s`,
		Args: positional("PID", "[LOG...]"),
		RunE: q.run,
	}
	q.flags(c)
	return c
}

func (q *queueListing) flags(c *cobra.Command) {
	f := c.Flags()
	f.StringVar(&q.format, "format", "table", "output format: table, json or python")
	f.StringSliceVar(&q.logs, "log", nil, "the same as LOG")
	f.StringArrayVar(&q.from.Dumps, "dump", nil, "read a saved `FILE` of the driver; may be repeated")
	f.BoolVar(&q.save, "save", false, "write queue_config_pid_PID.py to this directory, as --format python prints")
	watchFlags(c, &q.watch, &q.every)
	f.StringVar(&q.from.Root, "root", "/", "read sysfs and procfs below `DIR`, of the virtual GPU or a copy from another machine")
	jsonFlag(c, &q.asJSON)
}

func (q *queueListing) run(cmd *cobra.Command, args []string) error {
	pid, err := parsePID(args[0])
	if err != nil {
		return err
	}
	if q.asJSON {
		q.format = "json"
	}
	if q.format != "table" && q.format != "json" && q.format != "python" {
		return usagef("unknown format %q; use table, json or python", q.format)
	}
	if err := checkInterval(q.every); err != nil {
		return err
	}
	if len(q.from.Dumps) > 0 && !cmd.Flags().Changed("root") {
		q.from.Root = ""
	}
	if q.save && (q.watch || cmd.Flags().Changed("format")) {
		return usagef("--save writes one file of Python; use it without --format and --watch")
	}
	q.logs = append(q.logs, args[1:]...)
	ctx, stop := untilSignal(cmd.Context())
	defer stop()
	for {
		reply, err := findQueues(ctx, q.app, q.from, pid, q.logs)
		if err != nil {
			return err
		}
		if q.save {
			return saveQueues(q.app.stdout, reply)
		}
		if err := showQueues(q.app, reply, q.format); err != nil {
			return err
		}
		if !q.watch {
			return nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(q.every):
		}
	}
}

// findQueues queries every driver, the logs and the daemon. It fails only if none knows the process.
func findQueues(ctx context.Context, a *app, from driver.InspectionSource, pid int, logs []string) (*queuesReply, error) {
	r := &queuesReply{asked: pid, drivers: map[string]driver.Inspection{}, notes: []driver.Remark{}}
	logged, err := readLogs(ctx, logs)
	if err != nil {
		return nil, interrupted(ctx, err)
	}
	for _, d := range registry.All() {
		inspector, ok := d.(driver.Inspector)
		if !ok {
			continue
		}
		i, err := inspector.Inspect(from, pid)
		if err != nil {
			return nil, err
		}
		r.names, r.drivers[d.Name()] = append(r.names, d.Name()), i
	}
	if len(from.Dumps) == 0 {
		if r.process, err = processOf(ctx, a, pid, r); err == nil {
			err = joinDaemonQueues(ctx, a, r)
		}
	}
	if len(logs) > 0 {
		for _, name := range r.names {
			r.drivers[name].JoinLog(logged)
		}
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
		return nil, fmt.Errorf("no queues found for process %d (%s); use the PID of a program that uses a GPU", pid, strings.Join(why, ", "))
	}
	return r, nil
}

// hostPID is the PID on the host, if a driver knows it.
func (r *queuesReply) hostPID() int {
	for _, i := range r.drivers {
		if pid := i.HostPID(); pid != 0 {
			return pid
		}
	}
	return r.asked
}

// processOf finds the process in the daemon, by any of its PIDs.
func processOf(ctx context.Context, a *app, pid int, r *queuesReply) (*control.Process, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	var process *control.Process
	err := a.withClient(ctx, func(daemon *client.Client) error {
		list, err := daemon.List(ctx)
		if err != nil {
			return err
		}
		for i, p := range list.Processes {
			if p.PID == pid || p.PID == r.hostPID() {
				process = &list.Processes[i]
				return nil
			}
		}
		return fmt.Errorf("process %d is not managed", pid)
	})
	return process, err
}

// joinDaemonQueues passes the hardware queues that the daemon knows to their drivers.
func joinDaemonQueues(ctx context.Context, a *app, r *queuesReply) error {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	var known control.HardwareQueues
	err := a.withClient(ctx, func(daemon *client.Client) (err error) {
		known, err = daemon.Queues(ctx, r.process.PID)
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

func showQueues(a *app, r *queuesReply, format string) error {
	switch format {
	case "json":
		return a.printJSON(r.data())
	case "python":
		r.writePython(a.stdout)
	default:
		r.write(a.stdout)
	}
	return nil
}

// saveQueues writes the Python form to the file that test frameworks import.
func saveQueues(out io.Writer, r *queuesReply) error {
	name := fmt.Sprintf("queue_config_pid_%d.py", r.asked)
	if err := atomicfile.Write(name, 0o644, func(w io.Writer) error { r.writePython(w); return nil }); err != nil {
		return err
	}
	for _, n := range r.notes {
		fmt.Fprintf(out, "note: %s: %s\n", n.Source, printable(n.Text))
	}
	fmt.Fprintf(out, "written: %s\n", name)
	return nil
}

func (r *queuesReply) writePython(w io.Writer) {
	fmt.Fprintf(w, "# xsched queues %d --format python\nPID = %d\n", r.asked, r.hostPID())
	for _, name := range r.names {
		r.drivers[name].WritePython(w)
	}
}

// data returns the JSON form, with one member per driver.
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
			fmt.Fprintf(table, "%d\t%s\t%s\t%s\t%s\t%s\n", q.Index, q.Device, top.Level(q.Level)+routeText(q.Route), busyText(&q), schedText(q.State, p.Held), sliceText(q))
		}
		_ = table.Flush()
	}
	for _, n := range r.notes {
		fmt.Fprintf(w, "note: %s: %s\n", n.Source, printable(n.Text))
	}
}
