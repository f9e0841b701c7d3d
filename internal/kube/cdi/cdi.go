// SPDX-License-Identifier: Apache-2.0

// Package cdi writes specifications of the Container Device Interface, one file per claim. The
// container runtime applies their edits to the containers of a pod.
package cdi

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"xsched/internal/kube/edits"
)

// Version is that of the specification; containerd 1.7 and CRI-O 1.28 know it.
const Version = "0.6.0"

// Spec is a specification: devices of one kind, each with its edits.
type Spec struct {
	Version string   `json:"cdiVersion"`
	Kind    string   `json:"kind"` // VENDOR/CLASS
	Devices []Device `json:"devices"`
}

// Device is one device.
type Device struct {
	Name  string `json:"name"`
	Edits Edits  `json:"containerEdits"`
}

// Edits are changes to a container in CDI's form.
type Edits struct {
	Env    []string `json:"env,omitempty"`
	Mounts []Mount  `json:"mounts,omitempty"`
	// DeviceNodes are device files. The container runtime reads their numbers from the host.
	DeviceNodes []DeviceNode `json:"deviceNodes,omitempty"`
}

// DeviceNode is a device file of the host, at the same path in the container.
type DeviceNode struct {
	Path string `json:"path"`
}

// Mount is a bind mount.
type Mount struct {
	HostPath      string   `json:"hostPath"`
	ContainerPath string   `json:"containerPath"`
	Options       []string `json:"options,omitempty"`
}

// FromEdits converts the edits of a container.
func FromEdits(e edits.Edits) Edits {
	out := Edits{Env: append([]string{}, e.Env...)}
	if e.Preload != "" {
		out.Env = append(out.Env, "LD_PRELOAD="+e.Preload)
	}
	for _, m := range e.Mounts {
		out.Mounts = append(out.Mounts, Mount{HostPath: m.Host, ContainerPath: m.Container, Options: m.Options})
	}
	for _, n := range e.Nodes {
		out.DeviceNodes = append(out.DeviceNodes, DeviceNode{n})
	}
	return out
}

// Dir is a folder that the container runtime reads specifications from. Files of others in it are
// left alone: ours start with Prefix.
type Dir struct{ Path, Prefix string }

const suffix = ".json"

func (d Dir) file(name string) string { return filepath.Join(d.Path, d.Prefix+name+suffix) }

// Write writes the specification of a name; a reader sees the old one or the new one.
func (d Dir) Write(name string, s Spec) error {
	text, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return fmt.Errorf("write the CDI specification of %s: %w", name, err)
	}
	if err := os.MkdirAll(d.Path, 0o755); err != nil {
		return fmt.Errorf("create the folder of CDI specifications: %w", err)
	}
	// The runtime reads files named .json and .yaml only.
	temporary := d.file(name) + ".new"
	if err := os.WriteFile(temporary, append(text, '\n'), 0o644); err != nil {
		return fmt.Errorf("write the CDI specification of %s: %w", name, err)
	}
	if err := os.Rename(temporary, d.file(name)); err != nil {
		return fmt.Errorf("write the CDI specification of %s: %w", name, err)
	}
	return nil
}

// Remove removes the specification of a name, if there is one.
func (d Dir) Remove(name string) error {
	if err := os.Remove(d.file(name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the CDI specification of %s: %w", name, err)
	}
	return nil
}

// Clean removes our specifications except those to keep, and files that a crash left half-written.
func (d Dir) Clean(keep func(name string) bool) error {
	entries, err := os.ReadDir(d.Path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("read the folder of CDI specifications: %w", err)
	}
	for _, e := range entries {
		rest, ours := strings.CutPrefix(e.Name(), d.Prefix)
		name, whole := strings.CutSuffix(rest, suffix)
		if !ours || whole && keep(name) || !whole && !strings.HasSuffix(rest, suffix+".new") {
			continue
		}
		if err := os.Remove(filepath.Join(d.Path, e.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove an old CDI specification: %w", err)
		}
	}
	return nil
}
