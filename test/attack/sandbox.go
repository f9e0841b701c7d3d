// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// unitLimits are the restrictions of a systemd unit that matter to an attack.
type unitLimits struct {
	families []int // of sockets; nil: all
	files    uint64
	nice     int
	memory   int64  // bytes; 0: no limit
	cores    string // empty: all
}

// readUnit reads the restrictions of a unit file.
func readUnit(path string) (u unitLimits, err error) {
	if path == "" {
		return u, nil
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return u, err
	}
	for line := range strings.Lines(string(text)) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		var bad error
		switch key {
		case "RestrictAddressFamilies":
			u.families, bad = parseFamilies(value)
		case "LimitNOFILE":
			u.files, bad = strconv.ParseUint(value, 10, 64)
		case "Nice":
			u.nice, bad = strconv.Atoi(value)
		case "MemoryMax":
			u.memory, bad = parseBytes(value)
		}
		if bad != nil {
			return u, fmt.Errorf("read %s of %s: %w", key, path, bad)
		}
	}
	return u, nil
}

func parseFamilies(text string) (out []int, err error) {
	known := map[string]int{"AF_UNIX": unix.AF_UNIX, "AF_INET": unix.AF_INET, "AF_INET6": unix.AF_INET6, "AF_NETLINK": unix.AF_NETLINK}
	for name := range strings.FieldsSeq(text) {
		family, ok := known[name]
		if !ok {
			return nil, fmt.Errorf("unknown address family %s; add it to the bench", name)
		}
		out = append(out, family)
	}
	return out, nil
}

func parseBytes(text string) (int64, error) {
	shift := map[byte]uint{'K': 10, 'M': 20, 'G': 30}[text[len(text)-1]]
	if shift > 0 {
		text = text[:len(text)-1]
	}
	n, err := strconv.ParseInt(text, 10, 64)
	return n << shift, err
}

// wrap puts a command under the restrictions, and changes to a user.
func (u unitLimits) wrap(self string, uid uint32, argv ...string) *exec.Cmd {
	families := make([]string, len(u.families))
	for i, family := range u.families {
		families[i] = strconv.Itoa(family)
	}
	args := []string{"sandbox", "families=" + strings.Join(families, ","), "files=" + strconv.FormatUint(u.files, 10), "nice=" + strconv.Itoa(u.nice), "cores=" + u.cores, "uid=" + strconv.Itoa(int(uid)), "--"}
	return exec.Command(self, append(args, argv...)...)
}

// sandbox applies restrictions to itself and becomes another program: KEY=VALUE... -- CMD [ARG].
func sandbox(args []string) error {
	runtime.LockOSThread() // a filter belongs to a thread, and stays with it in the new program
	uid, families := 0, ""
	for len(args) > 0 && args[0] != "--" {
		key, value, _ := strings.Cut(args[0], "=")
		args = args[1:]
		if key == "families" {
			families = value
			continue
		}
		if key == "cores" {
			if err := pin(0, value); err != nil {
				return fmt.Errorf("set %s: %w", key, err)
			}
			continue
		}
		n, err := strconv.Atoi(value)
		if err != nil {
			return err
		}
		switch {
		case key == "uid":
			uid = n
		case key == "files" && n > 0:
			err = limitFiles(uint64(n))
		case key == "nice" && (n >= 0 || priorities()): // the bench has raised its own
			err = unix.Setpriority(unix.PRIO_PROCESS, 0, n)
		}
		if err != nil {
			return fmt.Errorf("set %s: %w", key, err)
		}
	}
	if len(args) < 2 {
		return errors.New("use: attack sandbox KEY=VALUE... -- CMD [ARG]")
	}
	if uid != 0 {
		if err := errors.Join(unix.Setgroups(nil), unix.Setresgid(uid, uid, uid), unix.Setresuid(uid, uid, uid)); err != nil {
			return fmt.Errorf("change to user %d: %w", uid, err)
		}
	}
	if families != "" {
		if err := restrictFamilies(strings.Split(families, ",")); err != nil {
			return fmt.Errorf("restrict address families: %w", err)
		}
	}
	return syscall.Exec(args[1], args[1:], os.Environ())
}

// limitFiles limits the open files. Without the right to raise the limit, it stays at the highest
// permitted one.
func limitFiles(n uint64) error {
	err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: n, Max: n})
	if !errors.Is(err, unix.EPERM) {
		return err
	}
	var files unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &files); err != nil {
		return err
	}
	files.Cur = files.Max
	return unix.Setrlimit(unix.RLIMIT_NOFILE, &files)
}

// raise gives all threads of this process a nice value at which the load of an attack does not delay
// its measurements, or CPUs of their own. Children get their own.
func raise() error {
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return err
	}
	for _, task := range tasks {
		tid, err := strconv.Atoi(task.Name())
		switch {
		case err != nil:
		case priorities():
			err = unix.Setpriority(unix.PRIO_PROCESS, tid, -15)
		default:
			err = pin(tid, division().bench)
		}
		if err != nil {
			return fmt.Errorf("raise the CPU priority: %w", err)
		}
	}
	return nil
}
