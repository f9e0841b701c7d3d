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
		Short: "Check what XSched can do on this machine",
		Long: `Check the kernel, the GPU drivers and their device nodes, permissions,
directories, the shim and the daemon. Nothing is changed.

  ok       works
  note     no effect, or can't be determined
  limited  a feature is restricted or unavailable
  missing  nothing can be scheduled; the exit code is 1

--self-test runs a program on each GPU, suspends it in the middle of a kernel,
resumes it and compares the result. It takes about two seconds per GPU and shares
the GPU with other programs for half a second. The exit code is 1 unless all
tests pass.`,
		Example: `  xsched doctor
  sudo xsched doctor --self-test
  xsched doctor --json | jq '.checks[] | select(.status != "ok")'`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if selfTest {
				return a.selfTest(cmd.Context(), asJSON)
			}
			report := doctor.Examine(a.machine(cmd.Context()))
			if err := a.show(report, nil, asJSON, func(w io.Writer) { writeDoctor(w, report) }); err != nil {
				return err
			}
			if !report.OK {
				return errors.New("an essential requirement is missing; see the report above")
			}
			return nil
		},
	}
	jsonFlag(c, &asJSON)
	c.Flags().BoolVar(&selfTest, "self-test", false, "test preemption on each GPU and print the steps")
	return c
}

// machine describes this machine to package doctor.
func (a *app) machine(ctx context.Context) doctor.Machine {
	return doctor.Machine{
		Root: "/", UID: os.Geteuid(), Getenv: os.Getenv, Kernel: doctor.ThisKernel{}, Open: doctor.OpenNode, Ask: doctor.AskNode,
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
	out := doctor.Daemon{Dir: running.Dir, Version: running.Version, UID: running.UID, Virtual: running.Virtual, Platform: running.Platform}
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
		fmt.Fprintln(w, "scheduling is not possible on this machine")
	case r.Level < 3:
		fmt.Fprintf(w, "available: level %d\n", r.Level)
	default:
		fmt.Fprintln(w, "available: levels 1, 2 and 3")
	}
}
