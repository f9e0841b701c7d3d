// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"xsched/internal/driver"
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

// attach reports the rights that every way into a running program needs.
func (e *examination) attach() {
	if e.Kernel.PidfdGetfd() != nil {
		return // already reported
	}
	reach, why, remedy := e.host().Tracing()
	status := OK
	switch reach {
	case driver.ReachNone:
		status = Limited
	case driver.ReachChildren, driver.ReachSome:
		status = Note
	}
	e.add("attach", status, why, remedy)
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
		if e.inContainer() && strings.HasPrefix(cause, "no daemon") {
			remedy = "mount the host's /run/xsched/client at /run/xsched; see docs/containers.md"
		}
		e.add(name, Limited, cause+": programs run natively", remedy)
		return
	}
	d := e.daemon
	detail := fmt.Sprintf("answers in %s, version %s", d.Dir, d.Version)
	if d.Virtual {
		detail += ", with a virtual GPU"
	}
	if d.Dead == "" {
		e.add(name, OK, detail, "")
	} else {
		e.add(name, Limited, detail+", but is dead: "+d.Dead, "restart the daemon; programs run unscheduled meanwhile")
	}
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
