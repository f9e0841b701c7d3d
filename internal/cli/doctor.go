// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"xsched/internal/doctor"
	"xsched/internal/driver/registry"
	"xsched/internal/embedded"
)

func doctorCommand(a *app) *cobra.Command {
	var (
		asJSON, selfTest bool
		trial            trialOptions
	)
	c := &cobra.Command{
		Use:   "doctor [flags] [-- CMD [ARG...]]",
		Short: "Check what XSched can do on this machine, or for a command",
		Long: `Check the kernel, the GPU drivers and their device nodes, permissions,
directories, the shim and the daemon, and say what to do, the most important
first. Nothing is changed.

  missing  nothing can be scheduled; the exit code is 1
  limited  a feature is restricted or unavailable
  note     no effect, or can't be determined
  ok       works

With CMD, run it under the shim and report which of its driver calls were seen
and which processes bypassed the shim: static linking, setuid, another ABI, a
lost LD_PRELOAD, unknown entry points. A process with work is suspended for
20 ms, to show that preemption works. CMD gets a private daemon if none runs.
The exit code is 0 only if all GPU work that was observed is scheduled.

--self-test runs a program on each GPU, suspends it in the middle of a kernel,
resumes it and compares the result. It takes about two seconds per GPU and shares
the GPU with other programs for half a second. The exit code is 1 unless all
tests pass.`,
		Example: `  xsched doctor
  sudo xsched doctor --self-test
  xsched doctor -- python app.py
  xsched doctor --for 30s -- python serve_model.py
  xsched doctor --json | jq '.checks[] | select(.status != "ok")'`,
		RunE: func(cmd *cobra.Command, args []string) error {
			trial.asJSON = asJSON
			switch {
			case len(args) > 0 && selfTest:
				return usagef("--self-test takes no command; use one of both")
			case len(args) > 0:
				return tryCommand(cmd.Context(), a, args, trial)
			case trial.virtual || trial.limit != 0:
				return usagef("--virtual and --for need a command; add -- CMD")
			case selfTest:
				return runSelfTest(cmd.Context(), a, asJSON)
			}
			return examine(cmd.Context(), a, asJSON)
		},
	}
	c.Flags().SetInterspersed(false) // flags after CMD belong to CMD
	jsonFlag(c, &asJSON)
	c.Flags().BoolVar(&selfTest, "self-test", false, "test preemption on each GPU and print the steps")
	c.Flags().BoolVar(&trial.virtual, "virtual", false, "run CMD on a virtual GPU")
	c.Flags().DurationVar(&trial.limit, "for", 0, "stop CMD after this time (default: wait until it ends)")
	return c
}

// examine checks this machine and prints the result.
func examine(ctx context.Context, a *app, asJSON bool) error {
	report := doctor.Examine(doctorMachine(ctx, a))
	err := a.show(report, nil, asJSON, func(w io.Writer) { writeDoctor(w, report, a.colours()) })
	if err == nil && !report.OK {
		err = errors.New("an essential requirement is missing; see the report above")
	}
	return err
}

// doctorMachine describes this machine to package doctor.
func doctorMachine(ctx context.Context, a *app) doctor.Machine {
	return doctor.Machine{
		Root: "/", UID: os.Geteuid(), Getenv: os.Getenv, Kernel: doctor.ThisKernel{}, Open: doctor.OpenNode, Ask: doctor.AskNode,
		Drivers: registry.All(), StateDir: stateDir("", false), Version: version,
		Dir: a.dirs()[0], Cache: embedded.CacheDir,
		Shim:   func() (string, error) { return embedded.Unpack(embedded.Shim) },
		Load:   doctor.Preload,
		Daemon: func() (doctor.Daemon, error) { return askDaemon(ctx, a) },
	}
}

func askDaemon(ctx context.Context, a *app) (doctor.Daemon, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	client, running, err := a.connect(ctx)
	if err != nil {
		return doctor.Daemon{}, err
	}
	defer client.Close()
	out := doctor.Daemon{Dir: running.Dir, Version: running.Version, UID: running.UID, Virtual: running.Virtual, Platform: running.Platform}
	if stats, err := client.Stats(ctx); err == nil {
		out.Scheduling, out.Dead = stats.Scheduling, stats.Dead()
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

func writeDoctor(w io.Writer, r doctor.Report, c colours) {
	writeChecks(w, r.Checks, c)
	switch {
	case !r.OK:
		fmt.Fprintln(w, "scheduling is not possible on this machine")
	case r.Level < 3:
		fmt.Fprintf(w, "available: level %d\n", r.Level)
	default:
		fmt.Fprintln(w, "available: levels 1, 2 and 3")
	}
}

// writeChecks prints what to do, one numbered line each, and then what is fine. Checks are sorted by
// importance.
func writeChecks(w io.Writer, checks []doctor.Check, c colours) {
	fine := slices.IndexFunc(checks, func(x doctor.Check) bool { return x.Status == doctor.OK })
	if fine < 0 {
		fine = len(checks)
	}
	if fine > 0 {
		fmt.Fprintln(w, "to do, the most important first:")
	}
	for i, x := range checks[:fine] {
		fmt.Fprintf(w, "%3d. %s  %s: %s\n", i+1, c.status(x.Status), x.Name, printable(doctor.Line(x)))
	}
	if fine < len(checks) {
		fmt.Fprintln(w, "fine:")
	}
	for _, x := range checks[fine:] {
		fmt.Fprintf(w, "     %s  %s: %s\n", c.status(x.Status), x.Name, printable(x.Detail))
	}
}
