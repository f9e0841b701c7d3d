// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Reach is the set of programs that a daemon of this user may trace.
type Reach int

// From none to all.
const (
	ReachNone     Reach = iota
	ReachChildren       // only programs it started
	ReachSome           // those without capabilities that the daemon lacks
	ReachOwn            // all of this user
	ReachAll
)

// Tracing returns which programs a daemon of this user may trace, why, and how to reach more. The
// rules are those of ptrace(2): they apply to every way into another process.
func (h Host) Tracing() (reach Reach, why, remedy string) {
	const run = "; `xsched run` needs nothing"
	if h.Ptrace != nil {
		if err := h.Ptrace(); err != nil {
			return ReachNone, "ptrace is refused (" + err.Error() + "), probably by a seccomp profile",
				"in a container allow ptrace, e.g. `--cap-add SYS_PTRACE`" + run
		}
	}
	text, _ := os.ReadFile(h.Path("proc/sys/kernel/yama/ptrace_scope"))
	scope := strings.TrimSpace(string(text))
	may, known := h.mayTrace()
	switch {
	case scope == "3":
		return ReachNone, "kernel.yama.ptrace_scope is 3: attaching is disabled", "start programs with `xsched run`; only a reboot clears the setting"
	case h.UID == 0 && known && !may:
		return ReachSome, "root without CAP_SYS_PTRACE can attach only to some programs", "start the container with `--cap-add SYS_PTRACE`" + run
	case h.UID == 0:
		return ReachAll, "root may attach to every program", ""
	case known && may:
		return ReachAll, "CAP_SYS_PTRACE: your daemon may attach to every program", ""
	case scope == "" || scope == "0":
		return ReachOwn, "your daemon may attach to your programs", ""
	case scope == "2":
		return ReachNone, "kernel.yama.ptrace_scope is 2: your daemon may attach to no program", "run the daemon as root for `attach`" + run
	}
	return ReachChildren, "kernel.yama.ptrace_scope is " + scope + ": your daemon may attach only to programs it started",
		"run the daemon as root for `attach`" + run
}

// mayTrace checks for CAP_SYS_PTRACE.
func (h Host) mayTrace() (may, known bool) {
	const capSysPtrace = 19
	b, err := os.ReadFile(h.Path("proc/self/status"))
	_, rest, found := strings.Cut(string(b), "CapEff:")
	line, _, _ := strings.Cut(rest, "\n")
	caps, parse := strconv.ParseUint(strings.TrimSpace(line), 16, 64)
	return caps>>capSysPtrace&1 == 1, err == nil && found && parse == nil
}

// BusGPUs returns the PCI addresses of a vendor's displays and accelerators.
func BusGPUs(root string, vendor uint16) []string {
	folders, _ := filepath.Glob(filepath.Join(root, "/sys/bus/pci/devices/*"))
	var out []string
	for _, folder := range folders {
		id, ok := hexFile(filepath.Join(folder, "vendor"))
		class, known := hexFile(filepath.Join(folder, "class"))
		const display, accelerator = 0x03, 0x12
		if base := class >> 16; ok && known && id == uint64(vendor) && (base == display || base == accelerator) {
			out = append(out, filepath.Base(folder))
		}
	}
	return out
}

func hexFile(name string) (uint64, bool) {
	b, err := os.ReadFile(name)
	if err != nil {
		return 0, false
	}
	v, err := strconv.ParseUint(strings.TrimSpace(string(b)), 0, 64)
	return v, err == nil
}
