// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"slices"
	"strconv"

	"xsched/internal/model"
)

func contains(all []string, one string) bool { return slices.Contains(all, one) }

// parsePID reads a process id.
func parsePID(text string) (int, error) {
	pid, err := strconv.Atoi(text)
	if err != nil || pid <= 0 {
		return 0, usagef("%q is not a process id; `xsched list` shows them", text)
	}
	return pid, nil
}

// parseLevel reads auto, 1, 2 or 3.
func parseLevel(text string) (model.Level, error) {
	switch text {
	case "auto":
		return model.LevelAuto, nil
	case "1", "2", "3":
		return model.Level(text[0] - '0'), nil
	}
	return 0, usagef("level %q is not known; use auto, 1, 2 or 3", text)
}
