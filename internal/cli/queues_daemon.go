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
		if q.Driver != amd.Name {
			reply.NVIDIA = append(reply.NVIDIA, q)
			continue
		}
		announced = append(announced, amd.AnnouncedQueue(q.Device, q.Kind, q.Details))
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

// detail is a number among a driver's own fields.
func detail(q control.HardwareQueue, name string) int64 {
	return int64(min(q.Details[name], 1<<62))
}

func writeChannels(w io.Writer, all []control.HardwareQueue) {
	if len(all) == 0 {
		return
	}
	table := newTable(w)
	fmt.Fprintln(table, "CHANNEL\tKIND\tDEVICE\tCLIENT\tGROUP\tCLASS\tSLICE\tSTOPPED")
	for _, q := range all {
		group, slice, stopped := "-", "-", "-"
		if n := detail(q, "group"); n != 0 {
			group = fmt.Sprintf("%#x", n)
		}
		if us := detail(q, "slice_us"); us > 0 {
			slice = microseconds(us)
		}
		if q.Kind != "group" {
			stopped = yesNo(q.Stopped)
		}
		fmt.Fprintf(table, "%#x\t%s\t%s\t%#x\t%s\t%#x\t%s\t%s\n", q.ID, q.Kind, q.Device, detail(q, "client"), group, detail(q, "class"), slice, stopped)
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
		fmt.Fprintf(w, "    {\"handle\": %#x, \"kind\": \"%s\", \"device\": \"%s\", \"client\": %#x, \"group\": %#x, \"class\": %#x, \"slice_us\": %d},\n",
			q.ID, q.Kind, q.Device, detail(q, "client"), detail(q, "group"), detail(q, "class"), detail(q, "slice_us"))
	}
	fmt.Fprintln(w, "]")
}
