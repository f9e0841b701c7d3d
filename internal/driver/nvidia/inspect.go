// SPDX-License-Identifier: Apache-2.0

package nvidia

import (
	"fmt"
	"io"
	"time"

	"xsched/internal/driver"
)

var _ driver.Inspector = kernelDriver{}

// Inspect finds nothing on the host: only a daemon with the process's files sees its channels.
func (kernelDriver) Inspect(driver.InspectionSource, int) (driver.Inspection, error) {
	return &inspection{}, nil
}

// inspection holds the channel groups and channels that a daemon reports.
type inspection struct{ queues []driver.HardwareQueue }

func (i *inspection) Found() bool                  { return len(i.queues) > 0 }
func (i *inspection) HostPID() int                 { return 0 }
func (i *inspection) Notes() []driver.Remark       { return nil }
func (i *inspection) JoinLog([]driver.LoggedQueue) {}

func (i *inspection) Join(_ driver.Process, queues []driver.HardwareQueue) { i.queues = queues }

// row is a channel as `xsched queues --json` shows it.
type row struct {
	Device  string            `json:"device"`
	Kind    string            `json:"kind"`
	ID      uint64            `json:"id"`
	Stopped bool              `json:"stopped"`
	Details map[string]uint64 `json:"details"`
}

func (i *inspection) Data() any {
	out := []row{}
	for _, q := range i.queues {
		out = append(out, row{q.Device.String(), q.Kind, q.ID, q.Stopped, q.Details})
	}
	return out
}

func (i *inspection) WriteTable(w io.Writer) {
	if len(i.queues) == 0 {
		return
	}
	table := driver.NewTable(w)
	fmt.Fprintln(table, "CHANNEL\tKIND\tDEVICE\tCLIENT\tGROUP\tCLASS\tSLICE\tSTOPPED")
	for _, q := range i.queues {
		group, slice, stopped := "-", "-", "-"
		if n := q.Details["group"]; n != 0 {
			group = fmt.Sprintf("%#x", n)
		}
		if us := q.Details["slice_us"]; us > 0 {
			slice = (time.Duration(min(us, 1<<40)) * time.Microsecond).String()
		}
		if q.Kind != "group" {
			stopped = map[bool]string{true: "yes", false: "no"}[q.Stopped]
		}
		fmt.Fprintf(table, "%#x\t%s\t%s\t%#x\t%s\t%#x\t%s\t%s\n", q.ID, q.Kind, q.Device, q.Details["client"], group, q.Details["class"], slice, stopped)
	}
	_ = table.Flush()
}

// WritePython prints Python lists for test frameworks.
func (i *inspection) WritePython(w io.Writer) {
	if len(i.queues) == 0 {
		return
	}
	fmt.Fprintln(w, "CHANNELS = [")
	for _, q := range i.queues {
		fmt.Fprintf(w, "    {\"handle\": %#x, \"kind\": \"%s\", \"device\": \"%s\", \"client\": %#x, \"group\": %#x, \"class\": %#x, \"slice_us\": %d},\n",
			q.ID, q.Kind, q.Device, q.Details["client"], q.Details["group"], q.Details["class"], q.Details["slice_us"])
	}
	fmt.Fprintln(w, "]")
}
