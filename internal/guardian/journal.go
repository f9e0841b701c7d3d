// SPDX-License-Identifier: Apache-2.0

package guardian

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"xsched/internal/atomicfile"
	"xsched/internal/driver"
	"xsched/internal/identity"
)

// journalDir in the runtime directory has one record per guarded process. A record outlives daemon
// and guardian, which one kill of their cgroup can end together.
const (
	journalDir  = "attached"
	recordLimit = 1 << 20 // bytes
)

// record describes a guarded process for the next daemon or guardian.
type record struct {
	Boot   string          `json:"boot"`
	Target process         `json:"target"`
	Place  driver.Place    `json:"place"`
	Driver string          `json:"driver"`
	State  json.RawMessage `json:"state"`
	// Daemon wrote the record for a guardian. While both live, nobody else may act. While only the
	// daemon lives, it hands the process to another guardian.
	Daemon, Guardian process
}

// process is a PID that can't be mistaken for a reused one.
type process struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"start"` // in ticks since boot
}

func identify(pid int) (process, error) {
	start, err := identity.Started(pid)
	return process{pid, start}, err
}

// lives reports whether the process lives. An error means that this is not known.
func (p process) lives(look looker) (bool, error) {
	start, err := look.start(p.PID)
	if identity.MeansEnd(err) {
		return false, nil
	}
	return err == nil && start == p.Start, err
}

// looker reads the kernel's view of processes. Tests replace it.
type looker struct {
	start func(pid int) (uint64, error)
	open  func(pid, flags int) (pidfd int, err error)
}

func kernel() looker { return looker{identity.Started, unix.PidfdOpen} }

// journal is the folder of records; empty: none are kept.
type journal string

func journalOf(dir string) journal {
	if dir == "" {
		return ""
	}
	return journal(filepath.Join(dir, journalDir))
}

// recordName is unique among daemons and sessions, so that a late removal can't hit a newer record.
func recordName(w driver.Ward) string {
	return fmt.Sprintf("%d-%d-%d.json", os.Getpid(), w.Session, w.PID)
}

func (j journal) write(w driver.Ward, p driver.Place, guardian int) error {
	if j == "" {
		return nil
	}
	r := record{Place: p, Driver: w.Driver, State: w.State}
	var err [4]error
	r.Boot, err[3] = identity.BootID()
	r.Target, err[0] = identify(w.PID)
	r.Daemon, err[1] = identify(os.Getpid())
	r.Guardian, err[2] = identify(guardian)
	b, coded := json.Marshal(r)
	if err := errors.Join(append(err[:], coded)...); err != nil {
		return fmt.Errorf("record attached process: %w", err)
	}
	if err := os.Mkdir(string(j), 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return fmt.Errorf("record attached process: %w", err)
	}
	path := filepath.Join(string(j), recordName(w))
	err[0] = atomicfile.Write(path, 0o600, func(w io.Writer) error { _, err := w.Write(b); return err })
	if err[0] != nil {
		return fmt.Errorf("record attached process: %w", err[0])
	}
	return nil
}

func (j journal) remove(name string) {
	if j != "" && name == filepath.Base(name) && strings.HasSuffix(name, ".json") {
		_ = os.Remove(filepath.Join(string(j), name))
	}
}

// replaced reports that a daemon has handed the process to another guardian since: the record is that
// guardian's.
func (j journal) replaced(name string, old record) bool {
	now, err := readRecord(filepath.Join(string(j), name))
	return err == nil && now.Guardian != old.Guardian
}

// read returns the records by name and removes invalid ones. A record that can't be read now, such as
// for lack of descriptors, stays for the next daemon.
func (j journal) read() map[string]record {
	out := map[string]record{}
	if j == "" {
		return out
	}
	boot, err := identity.BootID()
	if err != nil {
		return out // which records are of this boot is not known
	}
	entries, _ := os.ReadDir(string(j))
	for _, e := range entries {
		path := filepath.Join(string(j), e.Name())
		if !strings.HasSuffix(path, ".json") {
			// The name begins with the PID of its daemon, which may still be writing it.
			daemon, _, _ := strings.Cut(e.Name(), "-")
			if pid, err := strconv.Atoi(daemon); err != nil || errors.Is(unix.Kill(pid, 0), unix.ESRCH) {
				_ = os.Remove(path)
			}
			continue
		}
		r, err := readRecord(path)
		if _, io := errors.AsType[*os.PathError](err); io {
			continue
		}
		if err != nil || r.Boot != boot {
			_ = os.Remove(path)
			continue
		}
		out[e.Name()] = r
	}
	return out
}

func readRecord(path string) (r record, err error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return r, err
	}
	defer func() { _ = f.Close() }()
	b, err := io.ReadAll(io.LimitReader(f, recordLimit))
	if err == nil {
		err = json.Unmarshal(b, &r)
	}
	return r, err
}

// open returns the pidfd of the process; -1: it has ended. An error means that this is not known.
func (r record) open(look looker) (int, error) {
	pidfd, err := look.open(r.Target.PID, 0)
	if identity.MeansEnd(err) {
		return -1, nil
	}
	if err != nil {
		return -1, fmt.Errorf("open process %d: %w", r.Target.PID, err)
	}
	lives, err := r.Target.lives(look)
	if err != nil || !lives || identity.Ended(pidfd) {
		_ = unix.Close(pidfd)
		return -1, err
	}
	return pidfd, nil
}
