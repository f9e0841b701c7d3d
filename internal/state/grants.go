// SPDX-License-Identifier: Apache-2.0

package state

import (
	"encoding/json"
	"fmt"
	"strings"
)

// Grants are those of Kubernetes pods, by source. Their file is apart from Data, whose form an older
// release would refuse with all settings in it. A newer release may add fields to them.
type Grants struct {
	Version int                        `json:"version"`
	Sources map[string]json.RawMessage `json:"sources"`
}

// GrantsFile returns the file of grants next to a file of state.
func GrantsFile(path string) string { return strings.TrimSuffix(path, ".json") + "-grants.json" }

// LoadGrants reads a file as Load does.
func LoadGrants(path string) (Grants, error) {
	return LoadAs(path, Grants{Version: Version}, func(text []byte) (Grants, error) {
		var g Grants
		if err := json.Unmarshal(text, &g); err != nil {
			return g, fmt.Errorf("%w: %w", ErrCorrupt, err)
		}
		if g.Version != Version {
			return g, fmt.Errorf("%w: version %d, want %d", ErrCorrupt, g.Version, Version)
		}
		return g, nil
	})
}

// SaveGrants replaces the file as Save does.
func SaveGrants(path string, g Grants) error {
	g.Version = Version
	return save(path, g)
}
