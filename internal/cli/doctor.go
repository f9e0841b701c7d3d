// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"xsched/internal/doctor"
	"xsched/internal/driver/registry"
	"xsched/internal/embedded"
)

func (a *app) doctorCommand() *cobra.Command {
	var asJSON, selfTest bool
	c := &cobra.Command{
		Use:   "doctor",
		Short: "Say what XSched can do on this machine, and what is in the way",
		Long: `Looks at the kernel, the GPU drivers with their device nodes and modes, the rights
this user has, the folders, the shim and the daemon. Changes nothing.

  ok       as it should be
  note     nothing is lost, or it can't be known
  limited  something works less well or not at all; the rest does
  missing  nothing can be scheduled here; the exit code is 1

--self-test runs a program on each GPU, suspends it in the middle of a kernel,
resumes it and compares the result. It takes about two seconds a GPU, and shares the
GPU with other programs for half a second. The exit code is 1 unless all passed.`,
		Example: `  xsched doctor
  sudo xsched doctor --self-test
  xsched doctor --json | jq '.checks[] | select(.status != "ok")'`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if selfTest {
				return a.selfTest(cmd.Context(), asJSON)
			}
			report := doctor.Examine(a.machine(cmd.Context()))
			if err := a.show(report, nil, asJSON, func(w io.Writer) { writeDoctor(w, report) }); err != nil {
				return err
			}
			if !report.OK {
				return errors.New("something essential is missing; see the lines above")
			}
			return nil
		},
	}
	jsonFlag(c, &asJSON)
	c.Flags().BoolVar(&selfTest, "self-test", false, "test preemption on each GPU and print the steps")
	return c
}

// machine is this one.
func (a *app) machine(ctx context.Context) doctor.Machine {
	return doctor.Machine{
		Root: "/", UID: os.Geteuid(), Getenv: os.Getenv, Kernel: doctor.ThisKernel{}, Open: doctor.OpenNode,
		Drivers: registry.All(), StateDir: stateDir("", false), Version: version,
		Dir: a.dirs()[0], Cache: embedded.CacheDir,
		Shim:   func() (string, error) { return embedded.Unpack(embedded.Shim) },
		Load:   doctor.Preload,
		Daemon: func() (doctor.Daemon, error) { return a.askDaemon(ctx) },
	}
}

func (a *app) askDaemon(ctx context.Context) (doctor.Daemon, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	client, running, err := a.connect(ctx)
	if err != nil {
		return doctor.Daemon{}, err
	}
	defer client.Close()
	out := doctor.Daemon{Dir: running.Dir, Version: running.Version, Virtual: running.Virtual, Platform: running.Platform}
	if stats, err := client.Stats(ctx); err == nil {
		out.Scheduling = stats.Scheduling
	}
	if reply, err := client.Devices(ctx); err == nil {
		for _, d := range reply.Devices {
			out.Devices = append(out.Devices, doctor.Device{
				ID: d.ID, ComputeMode: d.ComputeMode, LevelReason: d.LevelReason, MaxLevel: d.MaxLevel, Probed: d.Probed,
			})
		}
	}
	return out, nil
}

func writeDoctor(w io.Writer, r doctor.Report) {
	table := newTable(w)
	for _, c := range r.Checks {
		fmt.Fprintf(table, "%s\t%s\t%s\n", c.Status, c.Name, printable(c.Detail))
		if c.Status != doctor.OK && c.Remedy != "" {
			fmt.Fprintf(table, "\t\t-> %s\n", printable(c.Remedy))
		}
	}
	_ = table.Flush()
	switch {
	case !r.OK:
		fmt.Fprintln(w, "XSched can't schedule anything here")
	case r.Level < 3:
		fmt.Fprintf(w, "level %d can be had here\n", r.Level)
	default:
		fmt.Fprintln(w, "levels 1, 2 and 3 can be had here")
	}
}
