// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

func (e *examination) kernel() {
	for _, f := range []struct {
		name, need, without string
		lack                Status
		err                 error
	}{
		{"pidfd", "Linux 5.3", "the daemon can't detect when programs end", Missing, e.Kernel.Pidfd()},
		{"memfd seals", "Linux 3.17", "the shared page can't be sealed", Missing, e.Kernel.MemfdSeals()},
		{"pidfd_getfd", "Linux 5.6", "`attach` does not work", Limited, e.Kernel.PidfdGetfd()},
		{"SO_PEERPIDFD", "Linux 6.5", "a client is identified by PID, which the kernel could reuse while it connects", Note, e.Kernel.PeerPidfd()},
	} {
		if f.err == nil {
			e.add(f.name, OK, "supported", "")
			continue
		}
		e.add(f.name, f.lack, fmt.Sprintf("%v: %s", f.err, f.without), "use "+f.need+" or newer; in a container allow the call")
	}
}

func (e *examination) scheduling() {
	const name = "engine thread"
	if e.daemon != nil && e.daemon.Scheduling != "" {
		if strings.HasPrefix(e.daemon.Scheduling, "SCHED_FIFO") || strings.HasPrefix(e.daemon.Scheduling, "nice") {
			e.add(name, OK, "runs with "+e.daemon.Scheduling, "")
			return
		}
	}
	switch err := e.Kernel.Realtime(); {
	case err == nil:
		e.add(name, OK, "SCHED_FIFO is allowed", "")
	case e.Kernel.Nice() == nil:
		e.add(name, OK, "no SCHED_FIFO, but nice -10 is allowed", "")
	default:
		e.add(name, Note, fmt.Sprintf("neither SCHED_FIFO nor nice -10 is allowed (%v): decisions may be late on a loaded machine", err),
			"run the daemon as root, with CAP_SYS_NICE, or `ulimit -r 1`")
	}
}

func (e *examination) attach() {
	const name = "attach"
	if e.Kernel.PidfdGetfd() != nil {
		return // already reported
	}
	b, err := os.ReadFile(e.path("proc/sys/kernel/yama/ptrace_scope"))
	scope := strings.TrimSpace(string(b))
	switch {
	case scope == "3":
		e.add(name, Limited, "kernel.yama.ptrace_scope is 3: attaching is disabled", "start programs with `xsched run`; only a reboot clears the setting")
	case e.UID == 0 && !e.mayTrace():
		e.add(name, Note, "root without CAP_SYS_PTRACE can attach only to some programs",
			"start the container with `--cap-add SYS_PTRACE`; `xsched run` needs nothing")
	case e.UID == 0:
		e.add(name, OK, "root may attach to every program", "")
	case err != nil || scope == "0":
		e.add(name, OK, "your daemon may attach to your programs", "")
	default:
		e.add(name, Note, "kernel.yama.ptrace_scope is "+scope+": your daemon may attach only to programs it started",
			"run the daemon as root for `attach`; `xsched run` needs nothing")
	}
}

// mayTrace checks for CAP_SYS_PTRACE, assuming yes if unreadable.
func (e *examination) mayTrace() bool {
	const capSysPtrace = 19
	b, err := os.ReadFile(e.path("proc/self/status"))
	_, rest, found := strings.Cut(string(b), "CapEff:")
	line, _, _ := strings.Cut(rest, "\n")
	caps, parse := strconv.ParseUint(strings.TrimSpace(line), 16, 64)
	return err != nil || !found || parse != nil || caps>>capSysPtrace&1 == 1
}

func (e *examination) runtimeDir() {
	const name = "runtime folder"
	info, err := os.Lstat(e.path(e.Dir))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		parent := filepath.Dir(e.Dir)
		if p, err := os.Stat(e.path(parent)); err == nil && p.IsDir() {
			e.add(name, OK, e.Dir+" will be created", "")
		} else {
			e.add(name, Note, parent+" does not exist; the daemon tries to create it", "set XSCHED_DIR to a directory that can be created")
		}
	case err != nil:
		e.add(name, Missing, fmt.Sprintf("%s: %v", e.Dir, errors.Unwrap(err)), "set XSCHED_DIR to a directory of your own")
	case info.Mode()&fs.ModeSymlink != 0 || !info.IsDir():
		e.add(name, Missing, e.Dir+" is a link or not a directory", "remove it, or set XSCHED_DIR")
	case owner(info) != e.UID:
		e.add(name, Missing, fmt.Sprintf("%s belongs to uid %d", e.Dir, owner(info)), "remove it, or set XSCHED_DIR")
	default:
		e.add(name, OK, e.Dir, "")
	}
}

func owner(info fs.FileInfo) int {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return int(st.Uid)
	}
	return -1
}

func (e *examination) cacheDir() {
	dir, err := e.Cache()
	if err != nil {
		e.add("cache folder", Missing, err.Error(), "set XSCHED_CACHE to a directory of your own")
		return
	}
	e.add("cache folder", OK, dir, "")
}

func (e *examination) shim() {
	path, err := e.Shim()
	if err != nil {
		cause, remedy, _ := strings.Cut(err.Error(), "; ")
		e.add("shim", Missing, cause, remedy)
		return
	}
	if err := e.Load(path); err != nil {
		e.add("shim", Missing, fmt.Sprintf("%s can't be loaded: %v", path, err),
			"set XSCHED_CACHE to a directory on a file system without noexec; musl programs can't load it")
		return
	}
	e.add("shim", OK, path, "")
}

func (e *examination) service(err error) {
	const name = "daemon"
	if err != nil {
		cause, remedy, _ := strings.Cut(err.Error(), "; ")
		if e.inContainer() {
			remedy = "mount the host's /run/xsched/client at /run/xsched; see docs/containers.md"
		}
		e.add(name, Note, cause, remedy)
		return
	}
	d := e.daemon
	detail := fmt.Sprintf("answers in %s, version %s", d.Dir, d.Version)
	if d.Virtual {
		detail += ", with a virtual GPU"
	}
	e.add(name, OK, detail, "")
	for _, dev := range d.Devices {
		if dev.Probed && dev.MaxLevel < 3 || !dev.Probed && dev.MaxLevel < 3 && dev.LevelReason != "" {
			e.report.Level = min(e.report.Level, dev.MaxLevel)
			e.add("level on "+dev.ID, Limited, fmt.Sprintf("level %d: %s", dev.MaxLevel, dev.LevelReason), "")
			continue
		}
		if dev.Probed {
			e.add("level on "+dev.ID, OK, fmt.Sprintf("level %d, confirmed by a program", dev.MaxLevel), "")
		}
	}
}
