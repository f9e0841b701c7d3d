// SPDX-License-Identifier: Apache-2.0

package identity

import (
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Program is what the kernel says about the program that a process runs. It does not include the
// command line: reading that could block on the memory of the process, and the process chooses it.
type Program struct {
	// Start is when the process started, in clock ticks since boot. With the PID it identifies the
	// process until the next boot.
	Start uint64
	// Executable is the path of the executable on the host; empty: unknown, or another file has that
	// path on the host, as in a container.
	Executable string
	Groups     []int // real, effective and supplementary
	// Cgroup is the path in the first hierarchy. CgroupByRoot: no user could create it.
	Cgroup       string
	CgroupByRoot bool
	Pod          Pod // by cgroups that no user could create
}

// Unit returns the innermost systemd unit of the cgroup; empty: none.
func (p *Program) Unit() string {
	for dir := p.Cgroup; dir != "" && dir != "/" && dir != "."; dir = path.Dir(dir) {
		if name := path.Base(dir); strings.HasSuffix(name, ".service") || strings.HasSuffix(name, ".scope") {
			return name
		}
	}
	return ""
}

// ProgramOf reads what a process runs. What can't be read stays empty.
// Preconditions: the caller holds a pidfd of the process and checks afterwards that it is alive.
func ProgramOf(pid int) Program { return own().program(pid) }

func (o *observer) program(pid int) Program {
	dir := fmt.Sprintf("%s/%d", o.proc, pid)
	var p Program
	p.Start, _ = startOf(dir)
	if text, err := os.ReadFile(dir + "/status"); err == nil {
		p.Groups = groupsOf(string(text))
	}
	p.Executable = executableOf(dir + "/exe")
	if text, err := os.ReadFile(dir + "/cgroup"); err == nil {
		if all := parseCgroups(string(text)); len(all) > 0 {
			p.Cgroup, p.Pod = all[0].path, o.pod(all)
			// A name alone proves nothing: the daemon must see the folders.
			p.CgroupByRoot = o.mountOf(all[0].name) != "" && !strings.HasPrefix(p.Cgroup, "/..") &&
				!userManager.MatchString(p.Cgroup) && o.createdByRoot(all[0], path.Join(p.Cgroup, "x"))
		}
	}
	return p
}

// Started returns when a process started; see Program.Start. A zombie has ended.
func Started(pid int) (uint64, error) { return startOf(fmt.Sprintf("/proc/%d", pid)) }

func startOf(dir string) (uint64, error) {
	text, err := os.ReadFile(dir + "/stat")
	if err != nil {
		return 0, fmt.Errorf("read start time: %w", err)
	}
	return parseStart(string(text))
}

// parseStart reads field 22 of /proc/PID/stat. The second field may have spaces and parentheses.
func parseStart(text string) (uint64, error) {
	at := strings.LastIndexByte(text, ')')
	fields := strings.Fields(text[at+1:])
	if at < 0 || len(fields) < 20 {
		return 0, errors.New("read start time: unknown format")
	}
	if fields[0] == "Z" || fields[0] == "X" {
		return 0, fmt.Errorf("read start time: %w", ErrEnded)
	}
	start, err := strconv.ParseUint(fields[19], 10, 64)
	if err != nil {
		return 0, fmt.Errorf("read start time: %w", err)
	}
	return start, nil
}

func groupsOf(status string) []int {
	var out []int
	for _, line := range []string{"Gid", "Groups"} {
		for word := range strings.FieldsSeq(statusField(status, line)) {
			if gid, err := strconv.Atoi(word); err == nil && gid >= 0 && !slices.Contains(out, gid) {
				out = append(out, gid)
			}
		}
	}
	return out
}

// executableOf resolves /proc/PID/exe. In its own mount namespace a user can give any path to any file,
// so the host must have the same file at that path.
func executableOf(link string) string {
	name, err := os.Readlink(link)
	if err != nil || !path.IsAbs(name) {
		return ""
	}
	var theirs, ours unix.Statx_t
	// Without asking the server of a file, which may not answer.
	const how = unix.AT_STATX_DONT_SYNC
	if unix.Statx(unix.AT_FDCWD, link, how, unix.STATX_INO, &theirs) != nil || unix.Statx(unix.AT_FDCWD, name, how|unix.AT_SYMLINK_NOFOLLOW, unix.STATX_INO, &ours) != nil ||
		theirs.Dev_major != ours.Dev_major || theirs.Dev_minor != ours.Dev_minor || theirs.Ino != ours.Ino {
		return ""
	}
	return name
}

// BootID identifies the boot of this machine.
func BootID() (string, error) {
	text, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(text)), err
}
