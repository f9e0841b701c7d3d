// SPDX-License-Identifier: Apache-2.0

// Package state keeps what operators set at run time in a file, for the next start of the daemon.
package state

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"xsched/internal/atomicfile"
)

// Version is that of the file's form.
const Version = 1

// FileName is the name of the file in the state directory.
const FileName = "state.json"

// maxBytes bounds the file: 16,384 processes with all hints.
const maxBytes = 16 << 20

// Data is the content of the file.
type Data struct {
	Version int `json:"version"`
	// Boot is the boot in which the processes lived.
	Boot string `json:"boot"`
	// Settings are changes of configuration keys, such as policy and gpus.0000:01:00.0.mode.
	Settings  map[string]Setting `json:"settings,omitempty"`
	Processes []Process          `json:"processes,omitempty"`
}

// Setting is a value that an operator set, and the configured one that it replaced: "file HPF". A new
// configured value is newer than the setting and ends it.
type Setting struct {
	Value string `json:"value"`
	Over  string `json:"over"`
}

// Process is what was set for one process. PID, start time and boot identify it.
type Process struct {
	PID      int               `json:"pid"`
	Start    uint64            `json:"start"`
	Account  string            `json:"account,omitempty"` // whose process it is, if not an operator's setting
	Hints    map[string]string `json:"hints,omitempty"`
	Pinned   map[string]string `json:"pinned,omitempty"`
	Ceiling  *int              `json:"ceiling,omitempty"`
	Granted  int               `json:"granted,omitempty"`
	Held     bool              `json:"held,omitempty"`
	Evicted  map[string]int64  `json:"evicted,omitempty"` // bytes by device
	Attached bool              `json:"attached,omitempty"`
}

// ErrCorrupt reports a file that is not a state file of this version.
var ErrCorrupt = errors.New("not a state file of this release")

// Parse reads the content of a file.
func Parse(text []byte) (Data, error) {
	var d Data
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&d); err != nil {
		return Data{}, fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return Data{}, fmt.Errorf("%w: text after its end", ErrCorrupt)
	}
	if d.Version != Version {
		return Data{}, fmt.Errorf("%w: version %d, want %d", ErrCorrupt, d.Version, Version)
	}
	for _, p := range d.Processes {
		if p.PID <= 0 || p.Start == 0 {
			return Data{}, fmt.Errorf("%w: process %d started at %d", ErrCorrupt, p.PID, p.Start)
		}
	}
	return d, nil
}

// Load reads a file of this user. A missing file is empty. A file that can't be used is set aside with
// the suffix .bad, and the error says so.
func Load(path string) (Data, error) { return LoadAs(path, Data{Version: Version}, Parse) }

// LoadAs reads a file of another form as Load does. A file that parse refuses can't be used.
func LoadAs[T any](path string, empty T, parse func([]byte) (T, error)) (T, error) {
	text, err := read(path)
	if errors.Is(err, os.ErrNotExist) {
		return empty, nil
	}
	var d T
	if err == nil {
		d, err = parse(text)
	}
	if err == nil {
		return d, nil
	}
	aside := path + ".bad"
	if renamed := os.Rename(path, aside); renamed != nil {
		return empty, fmt.Errorf("read state: %w", errors.Join(err, renamed))
	}
	return empty, fmt.Errorf("read state: %w; the file is now %s", err, aside)
}

// read does not wait for the other end of a pipe, and refuses a file that another user wrote.
func read(path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	var st unix.Stat_t
	switch err := unix.Fstat(int(f.Fd()), &st); {
	case err != nil:
		return nil, fmt.Errorf("stat: %w", err)
	case st.Mode&unix.S_IFMT != unix.S_IFREG:
		return nil, fmt.Errorf("%w: not a plain file", ErrCorrupt)
	case int(st.Uid) != os.Geteuid() || st.Mode&0o022 != 0:
		return nil, fmt.Errorf("%w: other users can write it", ErrCorrupt)
	}
	text, err := io.ReadAll(io.LimitReader(f, maxBytes+1))
	if err == nil && len(text) > maxBytes {
		err = fmt.Errorf("%w: larger than %d bytes", ErrCorrupt, maxBytes)
	}
	return text, err
}

// Save replaces the file. Readers see the old or the new one, also after the end of this process. It does
// not wait for the disk, because operators wait for it; Load sets aside what a power failure leaves.
func Save(path string, d Data) error {
	d.Version = Version
	return save(path, d)
}

func save(path string, d any) error {
	text, err := json.MarshalIndent(d, "", "  ")
	if err != nil {
		return fmt.Errorf("encode state: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("save state: %w", err)
	}
	err = atomicfile.Write(path, 0o600, func(w io.Writer) error {
		_, err := w.Write(append(text, '\n'))
		return err
	})
	if err != nil {
		return fmt.Errorf("save state: %w", err)
	}
	return nil
}
