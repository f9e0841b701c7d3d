// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"fmt"
	"io"
	"time"

	"xsched/internal/control"
	"xsched/internal/control/client"
	"xsched/internal/driver/amd"
)

// joinDaemonQueues adds what the daemon knows of the process's hardware queues: those of AMD's that
// its library announced, and NVIDIA's channel groups and channels.
func (a *app) joinDaemonQueues(ctx context.Context, reply *queuesReply) {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	var known control.HardwareQueues
	err := a.withClient(ctx, func(client *client.Client) (err error) {
		known, err = client.Queues(ctx, reply.Daemon.PID)
		return err
	})
	if err != nil {
		reply.Notes = append(reply.Notes, amd.Note{Source: "daemon", Text: oneLine(err.Error())})
		return
	}
	var announced []amd.Announced
	for _, q := range known.Queues {
		if q.NVIDIA != nil {
			reply.NVIDIA = append(reply.NVIDIA, q)
			continue
		}
		told := amd.Announced{ID: q.AMD.ID, GPUID: q.AMD.GPUID, Copies: q.Kind == "copy", PCI: q.Device, Ring: q.AMD.Ring, Bytes: q.AMD.Bytes}
		if !reply.Daemon.Attached { // a debugger is not told the priority
			told.Priority = &q.AMD.Priority
		}
		announced = append(announced, told)
	}
	if len(announced) == 0 {
		return
	}
	if reply.AMD == nil {
		p := reply.Daemon
		reply.AMD = &amd.Found{PID: p.PID, PIDs: []int{p.PID}, Queues: []amd.FoundQueue{}, Notes: []amd.Note{}, Command: p.Command}
		if p.ClientPID != 0 && p.ClientPID != p.PID {
			reply.AMD.PIDs = append(reply.AMD.PIDs, p.ClientPID)
		}
	}
	before := len(reply.AMD.Notes)
	reply.AMD.JoinAnnounced(announced)
	reply.Notes = append(reply.Notes, reply.AMD.Notes[before:]...)
}

func writeChannels(w io.Writer, all []control.HardwareQueue) {
	if len(all) == 0 {
		return
	}
	table := newTable(w)
	fmt.Fprintln(table, "CHANNEL\tKIND\tDEVICE\tCLIENT\tGROUP\tCLASS\tSLICE\tSTOPPED")
	for _, q := range all {
		c, group, slice, stopped := q.NVIDIA, "-", "-", "-"
		if c.Group != 0 {
			group = fmt.Sprintf("%#x", c.Group)
		}
		if c.SliceUS > 0 {
			slice = microseconds(c.SliceUS)
		}
		if q.Kind != "group" {
			stopped = yesNo(q.Stopped)
		}
		fmt.Fprintf(table, "%#x\t%s\t%s\t%#x\t%s\t%#x\t%s\t%s\n", c.Handle, q.Kind, q.Device, c.Client, group, c.Class, slice, stopped)
	}
	_ = table.Flush()
}

// writeChannelsPython prints NVIDIA's channels for a test framework.
func writeChannelsPython(w io.Writer, all []control.HardwareQueue) {
	if len(all) == 0 {
		return
	}
	fmt.Fprintln(w, "CHANNELS = [  # of NVIDIA's driver")
	for _, q := range all {
		c := q.NVIDIA
		fmt.Fprintf(w, "    {\"handle\": %#x, \"kind\": \"%s\", \"device\": \"%s\", \"client\": %#x, \"group\": %#x, \"class\": %#x, \"slice_us\": %d},\n",
			c.Handle, q.Kind, q.Device, c.Client, c.Group, c.Class, c.SliceUS)
	}
	fmt.Fprintln(w, "]")
}
