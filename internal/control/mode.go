// SPDX-License-Identifier: Apache-2.0

package control

import (
	"fmt"
	"slices"
)

// ModeText returns a mode as users write it: with its level, if it has one.
func ModeText(mode string, level int) string {
	if level == 0 {
		return mode
	}
	return fmt.Sprintf("%s %d", mode, level)
}

// ModeOn returns the mode in force on a GPU, and the level of mode "level".
func (l *List) ModeOn(device string) (mode string, level int) {
	i := slices.IndexFunc(l.Devices, func(s DeviceSetting) bool { return s.Device == device && s.Mode != "" })
	if i < 0 {
		return l.Mode, l.ModeLevel
	}
	return l.Devices[i].Mode, l.Devices[i].Level
}
