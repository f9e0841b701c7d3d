// SPDX-License-Identifier: Apache-2.0

package identity

import (
	"errors"
	"math"
	"strconv"
	"strings"
)

// status is what this package needs of /proc/PID/status.
type status struct {
	uid       int // -1: the process has several, such as a set-user-ID program
	effective int
	parent    int
	localPID  int // in its own PID namespace
	groups    []int
}

// statusField returns the text of a line of /proc/PID/status or of a pidfd's fdinfo.
func statusField(text, name string) string {
	for line := range strings.Lines(text) {
		if value, ok := strings.CutPrefix(line, name+":"); ok {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

func parseStatus(text string) (status, error) {
	out := status{uid: -1, effective: -1}
	uids := strings.Fields(statusField(text, "Uid")) // real, effective, saved, file system
	if len(uids) != 4 {
		return out, errors.New("read status: no uid")
	}
	effective, err := strconv.ParseUint(uids[1], 10, 32)
	if err != nil || effective > math.MaxInt {
		return out, errors.New("read status: bad uid")
	}
	out.effective = int(effective)
	if uids[0] == uids[1] && uids[0] == uids[2] {
		out.uid = out.effective
	}
	if out.parent, err = pidText(statusField(text, "PPid")); err != nil {
		return out, err
	}
	out.groups = groupsOf(text)
	// Outermost first: in the namespace of /proc, ..., in its own. Kernels before 4.1 have none.
	if pids := strings.Fields(statusField(text, "NSpid")); len(pids) > 0 {
		if out.localPID, err = pidText(pids[len(pids)-1]); err != nil {
			return out, err
		}
	}
	return out, nil
}

func pidText(text string) (int, error) {
	pid, err := strconv.ParseUint(text, 10, 31)
	if err != nil {
		return 0, errors.New("read status: bad PID")
	}
	return int(pid), nil
}

// rootOf returns the uid that a namespace maps uid 0 to, from /proc/PID/uid_map; -1: none.
func rootOf(text string) int {
	for line := range strings.Lines(text) {
		f := strings.Fields(line) // first inside, first outside, count
		if len(f) != 3 || f[0] != "0" {
			continue
		}
		if uid, err := strconv.ParseUint(f[1], 10, 32); err == nil && uid <= math.MaxInt {
			return int(uid)
		}
	}
	return -1
}
