// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"xsched/internal/daemon"
	"xsched/internal/model"
	"xsched/internal/policy"
	"xsched/internal/virtual"
)

// serveFlags are the flags of serve.
type serveFlags struct {
	o                daemon.Options
	mode, level      string
	gpus             virtual.Options
	starvation, hold time.Duration
	logLevel         string
	logJSON          bool
	selfTest, audit  string
	sensors          string
	alerts           alertOptions
	limits           []string
	host             bytesFlag
	allow            bool
	web              webOptions
	config           string
	noState          bool
}

func (s *serveFlags) register(c *cobra.Command) {
	f, knobs, o := c.Flags(), policy.DefaultKnobs(), &s.o
	f.StringVar(&o.Policy, "policy", "", "initial scheduling policy (default HPF)")
	f.StringVar(&s.mode, "mode", string(model.ModeLive), "initial mode: off, timeslice, suspend, level or live")
	f.StringVar(&s.level, "level", "", "preemption level for --mode level: 1, 2 or 3")
	f.DurationVar(&o.Quantum, "quantum", 0, fmt.Sprintf("turn of each program under rotating policies (default %v)", knobs.Quantum))
	f.DurationVar(&s.hold, "hold", 0, fmt.Sprintf("how long a high-priority program that becomes idle keeps the GPU, for gaps between its kernels; 0 resumes others at once (default %v)", knobs.Hold))
	f.DurationVar(&s.starvation, "starvation-bound", 0, fmt.Sprintf("longest time that a busy program may go without GPU progress; 0 disables the bound (default %v)", knobs.StarvationBound))
	f.Var(&s.host, "host-memory", "host memory that programs may use together for GPU memory that is moved; 0 moves none (default half of what is available at the start)")
	f.StringArrayVar(&s.limits, "max-priority", nil, "limit the rank of a user of root's daemon, whatever hint it follows from: `[USER=]N`; without USER for all others (default 0)")
	f.BoolVar(&s.allow, "allow-priority", false, "the same as --max-priority 255")
	f.IntVar(&o.MaxSessions, "max-sessions", 0, "maximum number of connected programs (default 4096)")
	f.IntVar(&o.MaxSessionsPerUID, "max-sessions-per-user", 0, "maximum number of connected programs per user (default 1024)")
	f.StringVar(&o.GuardianCgroup, "guardian-cgroup", "", "`FOLDER` of a cgroup for the guardian, unless its service runs (default the daemon's cgroup)")
	f.BoolVar(&o.Virtual, "virtual", false, "use the virtual GPU; start it if none is running")
	f.IntVar(&s.gpus.Devices, "devices", 0, "with --virtual: number of virtual GPUs (default 2)")
	f.Var((*bytesFlag)(&s.gpus.Memory), "device-memory", "with --virtual: memory of each virtual GPU (default that of the platform)")
	f.StringVar(&o.Platform, "platform", virtual.Default().Name, "with --virtual: emulated driver, "+platformNames())
	f.StringVar(&o.Record, "record", "", "record all scheduling events to `FILE` for xsched replay (at most 4 files of 64 MB)")
	f.StringVar(&s.audit, "audit", auditAuto, "append changes, their authors and faults to `FILE` (at most 4 files of 8 MB, and as many for changes of other users); auto: "+auditDefault+" for root's daemon in /run/xsched, else off")
	f.StringVar(&s.selfTest, "self-test", selfTestAuto, "test preemption on idle GPUs in the background: auto (real GPUs only), on or off")
	f.StringVar(&s.sensors, "sensors", sensorsOff, "read memory, power, temperature and errors of the GPUs: on (real GPUs only) or off")
	f.StringVar(&s.config, "config", "", "read the configuration from `FILE`; off reads none (default /etc/xsched/config.yaml for root's daemon on real GPUs)")
	f.BoolVar(&s.noState, "no-state", false, "forget what is set at run time when the daemon ends, and ignore what a previous one kept")
	s.web.flags(c)
	s.alerts.flags(c)
	logFlags(c, &s.logLevel, &s.logJSON)
}

// options checks the flags. given reports whether a flag has a value from the command line or the file.
func (s *serveFlags) options(given func(name string) bool) (daemon.Options, error) {
	o := s.o
	var err error
	if o.LogLevel, err = parseLogLevel(s.logLevel); err != nil {
		return o, err
	}
	if o.Mode, o.ModeLevel, err = serveMode(s.mode, s.level); err != nil {
		return o, err
	}
	if o.Quantum < 0 || s.starvation < 0 || s.hold < 0 || o.MaxSessions < 0 || o.MaxSessionsPerUID < 0 {
		return o, usagef("durations and limits can't be negative; omit the flag for the default")
	}
	if o.HostMemory = model.Bytes(s.host); !given("host-memory") {
		o.HostMemory = availableMemory() / 2 &^ (1<<20 - 1)
	}
	if o.Hold = s.hold; s.hold == 0 && given("hold") {
		o.Hold = -1 // none; the zero value means the default
	}
	if o.StarvationBound = s.starvation; s.starvation == 0 && given("starvation-bound") {
		o.StarvationBound = -1 // off; the zero value means the default
	}
	return o, checkPlatform(o.Platform)
}

// availableMemory is what the host can use without swapping; 0: unknown.
func availableMemory() model.Bytes {
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(text)) {
		var kib int64
		if n, _ := fmt.Sscanf(line, "MemAvailable: %d kB", &kib); n == 1 {
			return model.Bytes(kib) << 10
		}
	}
	return 0
}

// copyFlags sets the flags of a set that were given in another one.
func copyFlags(to, from *pflag.FlagSet) {
	from.Visit(func(f *pflag.Flag) {
		target := to.Lookup(f.Name)
		if target == nil {
			return // of the root command
		}
		if list, ok := f.Value.(pflag.SliceValue); ok {
			for _, value := range list.GetSlice() {
				_ = to.Set(f.Name, value) // was accepted once
			}
			return
		}
		_ = to.Set(f.Name, f.Value.String())
	})
}
