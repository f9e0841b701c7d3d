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

// checkPriority holds a priority to its range.
func checkPriority(p int) error {
	if p < int(model.PriorityNever) || p > int(model.PriorityMax) {
		return usagef("priority %d is out of range; use %d to %d (%d: never run)",
			p, int(model.PriorityMin), int(model.PriorityMax), int(model.PriorityNever))
	}
	return nil
}

// maxLaunches bounds the Lv1 limits; no runtime queues more.
const maxLaunches = 1 << 20

// checkLimits holds the Lv1 limits to their range; 0 is the daemon's default.
func checkLimits(inFlight, batch int) error {
	if inFlight < 0 || inFlight > maxLaunches {
		return usagef("--in-flight %d is out of range; use 0 (default) to %d", inFlight, maxLaunches)
	}
	if batch < 0 || batch > maxLaunches {
		return usagef("--batch %d is out of range; use 0 (default) to %d", batch, maxLaunches)
	}
	if inFlight != 0 && batch > inFlight {
		return usagef("--batch %d is more than --in-flight %d; use at most as many", batch, inFlight)
	}
	return nil
}
