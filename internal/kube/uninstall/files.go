// SPDX-License-Identifier: Apache-2.0

package uninstall

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"xsched/internal/kube/cluster"
)

// Files are the places of a node where XSched leaves files. Empty ones are left alone.
type Files struct {
	CDI     string // folder of CDI specifications
	Kubelet string // folder with plugins and plugins_registry
	// Whole are folders of XSched's own, which are removed.
	Whole []string
}

// Remove removes XSched's files and returns their number. Files of others in shared folders stay, and
// what is gone already is no error. Links are removed, never followed.
func (f *Files) Remove() (int, error) {
	var all error
	n := 0
	remove := func(path string) {
		if _, err := os.Lstat(path); errors.Is(err, os.ErrNotExist) {
			return
		}
		if err := os.RemoveAll(path); err != nil {
			all = errors.Join(all, fmt.Errorf("clean up: %w", err))
			return
		}
		n++
	}
	for _, folder := range f.shared() {
		entries, err := os.ReadDir(folder)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			all = errors.Join(all, fmt.Errorf("clean up: %w", err))
		}
		for _, e := range entries {
			if own(e.Name()) {
				remove(filepath.Join(folder, e.Name()))
			}
		}
	}
	for _, folder := range f.Whole {
		remove(folder)
	}
	return n, all
}

func (f *Files) shared() []string {
	var out []string
	if f.CDI != "" {
		out = append(out, f.CDI)
	}
	if f.Kubelet != "" {
		out = append(out, filepath.Join(f.Kubelet, "plugins"), filepath.Join(f.Kubelet, "plugins_registry"))
	}
	return out
}

// own reports whether an entry of a shared folder is XSched's: the driver's name, alone or with a
// separator after it. "gpu.xsched.development" is another's.
func own(name string) bool {
	rest, ok := strings.CutPrefix(name, cluster.Driver)
	return ok && (rest == "" || strings.ContainsAny(rest[:1], "-_."))
}
