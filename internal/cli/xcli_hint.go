// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"xsched/internal/control/upstream"
	"xsched/internal/model"
)

func (x *xcli) hintCommand() *cobra.Command {
	var (
		handle                handleFlag
		pid                   int
		priority, utilization int
		timeslice             int64
	)
	c := &cobra.Command{
		Use: "hint [-x HANDLE | --pid PID] (-p PRIORITY | -u PERCENT | -t MICROSECONDS)", Short: "Set scheduling hints of a queue or process", Args: noArgs,
		Long: "Priority and utilization apply to a queue or process, the timeslice to the policy.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			changed := cmd.Flags().Changed
			hints := 0
			for _, name := range []string{"priority", "utilization", "timeslice"} {
				if changed(name) {
					hints++
				}
			}
			slice := changed("timeslice")
			switch {
			case hints != 1:
				return usagef("exactly one hint is required; use -p, -u or -t")
			case handle != 0 && changed("pid"):
				return usagef("-x and --pid exclude each other; use one")
			case changed("pid") && pid <= 0:
				return usagef("%d is not a PID; see `xcli list`", pid)
			case !slice && handle == 0 && pid == 0:
				return usagef("no queue or process given; use -x HANDLE or --pid PID")
			case changed("priority") && (priority < int(model.PriorityNever) || priority > int(model.PriorityMax)):
				return usagef("priority %d is out of range; use %d to %d", priority, model.PriorityMin, model.PriorityMax)
			case changed("utilization") && (utilization < 0 || utilization > model.UtilizationMax):
				return usagef("utilization %d is out of range; use 0 to %d", utilization, model.UtilizationMax)
			case slice && timeslice <= 0:
				return usagef("timeslice %d is out of range; use a positive number", timeslice)
			}
			return x.with(cmd.Context(), func(ctx context.Context, client *upstream.Client) error {
				switch {
				case slice:
					return x.timeslice(ctx, client, timeslice)
				case changed("utilization"):
					return x.utilization(ctx, client, uint64(handle), pid, utilization)
				}
				return x.priority(ctx, client, uint64(handle), pid, priority)
			})
		},
	}
	f := c.Flags()
	f.VarP(&handle, "xqueue", "x", "handle of the queue")
	f.IntVar(&pid, "pid", 0, "`PID` of the program")
	f.IntVarP(&priority, "priority", "p", 0, "priority, -255 to 255, larger is more important; -256 never runs")
	f.IntVarP(&utilization, "utilization", "u", 0, "share of the device in percent, 0 to 100")
	f.Int64VarP(&timeslice, "timeslice", "t", 0, "turn of each program in us, 100 to 10000000")
	return c
}

func (x *xcli) timeslice(ctx context.Context, client *upstream.Client, us int64) error {
	kind := upstream.HintTimeslice
	note, err := client.Hint(ctx, upstream.Hint{Type: &kind, Timeslice: &us})
	if err != nil {
		return err
	}
	if note != "" {
		fmt.Fprintf(x.stdout, "Note: %s\n", note)
		return nil
	}
	fmt.Fprintf(x.stdout, "Timeslice set to %dus\n", us)
	return nil
}

func (x *xcli) utilization(ctx context.Context, client *upstream.Client, handle uint64, pid, share int) error {
	kind := upstream.HintUtilization
	if _, err := client.Hint(ctx, upstream.Hint{Type: &kind, PID: &pid, Handle: &handle, Utilization: &share}); err != nil {
		return err
	}
	whose := fmt.Sprintf("process %d", pid)
	if handle != 0 {
		whose = fmt.Sprintf("XQueue 0x%x", handle)
	}
	fmt.Fprintf(x.stdout, "Utilization of %s set to %d\n", whose, share)
	return nil
}

// priority sets the priority of a queue. Upstream's routes have none for processes, so a process's
// priority is set on all its queues.
func (x *xcli) priority(ctx context.Context, client *upstream.Client, handle uint64, pid, priority int) error {
	handles := []uint64{handle}
	if handle == 0 {
		all, err := client.List(ctx)
		if err != nil {
			return err
		}
		handles = nil
		for _, q := range all.Queues {
			if q.PID == pid {
				handles = append(handles, q.Handle)
			}
		}
		if len(handles) == 0 {
			return fmt.Errorf("process %d has no queue; see `xcli list`", pid)
		}
	}
	kind := upstream.HintPriority
	for _, h := range handles {
		if _, err := client.Hint(ctx, upstream.Hint{Type: &kind, Handle: &h, Priority: &priority}); err != nil {
			return err
		}
		fmt.Fprintf(x.stdout, "Priority of XQueue 0x%x set to %d\n", h, priority)
	}
	return nil
}
