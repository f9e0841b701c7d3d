// SPDX-License-Identifier: Apache-2.0

package cdi

import (
	"os"
	"path/filepath"

	"sigs.k8s.io/yaml"
)

// maxSpec bounds a specification that is read. Those of the vendors' tools have some ten kilobytes.
const maxSpec = 4 << 20

// Find returns the devices, "KIND=NAME", that specifications in the folders define. Files that can't be
// read are left out, as a container runtime does.
func Find(folders ...string) map[string]bool {
	out := map[string]bool{}
	for _, folder := range folders {
		entries, _ := os.ReadDir(folder)
		for _, e := range entries {
			file := filepath.Join(folder, e.Name())
			if ext := filepath.Ext(file); ext != ".json" && ext != ".yaml" {
				continue
			}
			if info, err := os.Stat(file); err != nil || info.Size() > maxSpec {
				continue
			}
			text, err := os.ReadFile(file)
			var s Spec
			if err != nil || yaml.Unmarshal(text, &s) != nil {
				continue
			}
			for i := range s.Devices {
				out[s.Kind+"="+s.Devices[i].Name] = true
			}
		}
	}
	return out
}
