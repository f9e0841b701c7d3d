// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"xsched/internal/model"
)

// Read reads the file of a daemon with this uid. Other users must not be able to write it.
func Read(path string, uid int) (*File, error) {
	text, st, err := load(path)
	if err != nil {
		return nil, err
	}
	refuse := func(remedy, format string, args ...any) error {
		return Errors{{File: path, Cause: fmt.Sprintf(format, args...), Remedy: remedy}}
	}
	switch {
	case st.Uid != 0 && int(st.Uid) != uid:
		return nil, refuse(fmt.Sprintf("use `chown %d`", uid), "the file belongs to uid %d, who could change the daemon's settings", st.Uid)
	case st.Mode&0o022 != 0:
		return nil, refuse("use `chmod go-w`", "other users can write the file and change the daemon's settings")
	}
	return Parse(path, text)
}

// Check reads a file, whoever it belongs to.
func Check(path string) (*File, error) {
	text, _, err := load(path)
	if err != nil {
		return nil, err
	}
	return Parse(path, text)
}

// load does not wait for the other end of a pipe.
func load(path string) ([]byte, unix.Stat_t, error) {
	var st unix.Stat_t
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, st, fmt.Errorf("read configuration: %w", err)
	}
	defer func() { _ = f.Close() }()
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return nil, st, fmt.Errorf("read configuration: %w", err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil, st, Errors{{File: path, Cause: "not a plain file", Remedy: "use `--config off` for no configuration"}}
	}
	text, err := io.ReadAll(io.LimitReader(f, maxBytes+1))
	if err != nil {
		return nil, st, fmt.Errorf("read configuration: %w", err)
	}
	return text, st, nil
}

// String describes the conditions.
func (m *Match) String() string {
	var out []string
	add := func(name string, value fmt.Stringer, set bool) {
		if set {
			out = append(out, name+"="+value.String())
		}
	}
	add("command", m.Command, m.Command != nil)
	add("executable", m.Executable, m.Executable != nil)
	add("user", m.User, m.User != nil)
	add("group", m.Group, m.Group != nil)
	add("unit", m.Unit, m.Unit != nil)
	add("cgroup", m.Cgroup, m.Cgroup != nil)
	add("container", m.Container, m.Container != nil)
	return strings.Join(out, " ")
}

func (n Name) String() string { return string(n) }

// String describes the hints in the form of the command line.
func (h *Hints) String() string {
	var out []string
	texts := h.Texts()
	for _, f := range model.HintFields() {
		if text, ok := texts[f.Name]; ok {
			out = append(out, f.Flag+"="+text)
		}
	}
	return strings.Join(out, " ")
}
