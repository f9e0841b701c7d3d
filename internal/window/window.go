// SPDX-License-Identifier: Apache-2.0

// Package window finds the programs behind the active window of an X11 display, and tells a scheduler
// about them. A window belongs to an X client. A program belongs to the nearest of its parents that
// owns a window, so a job in a terminal belongs to the terminal, and a browser that was started there
// does not.
package window

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// ID is the number of a window on its display.
type ID uint32

// String returns the form that X tools print.
func (id ID) String() string { return fmt.Sprintf("0x%x", uint32(id)) }

// Window is a top-level window.
type Window struct {
	ID  ID
	PID int // of the X client; 0: unknown
	// Reason explains an unknown PID.
	Reason string
	// Shell marks the desktop and its panels, which are part of no program.
	Shell bool
	Title string
}

// State is what a display shows.
type State struct {
	// Manager tells whether a window manager names the active window; else it is the one with the
	// keyboard.
	Manager bool
	// Active holds the active window and the windows that it is a dialog of. Empty: none.
	Active  []ID
	Windows []Window
}

// Processes answers what Members asks about processes.
type Processes struct {
	Parent func(pid int) int // 0: none
	Getenv func(pid int, name string) string
}

// maxParents bounds the walk from a program to the process that owns its window.
const maxParents = 64

// Members returns those of the programs that belong to the active window of a display.
func Members(display string, s *State, programs []int, processes Processes) []int {
	owned := map[int][]ID{}
	var active []ID
	for i := range s.Windows {
		w := &s.Windows[i]
		if w.Shell {
			continue
		}
		if w.PID != 0 {
			owned[w.PID] = append(owned[w.PID], w.ID)
		}
		if slices.Contains(s.Active, w.ID) {
			active = append(active, w.ID)
		}
	}
	if len(active) == 0 {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(programs), func(pid int) bool {
		return !slices.ContainsFunc(windowsOf(display, pid, owned, processes), func(id ID) bool { return slices.Contains(active, id) })
	})
}

// windowsOf returns the windows that a program belongs to. A terminal may show all its windows from
// one process. WINDOWID, which terminals set, then tells which of them a program runs in. It also
// names the window of a program that has left the tree, such as one in tmux.
func windowsOf(display string, pid int, owned map[int][]ID, processes Processes) []ID {
	var said []ID
	if DisplayName(processes.Getenv(pid, "DISPLAY")) == DisplayName(display) {
		if id, err := strconv.ParseUint(processes.Getenv(pid, "WINDOWID"), 0, 32); err == nil && id != 0 {
			said = []ID{ID(id)}
		}
	}
	for p, n := pid, 0; p > 0 && n < maxParents; p, n = processes.Parent(p), n+1 {
		windows := owned[p]
		if len(windows) == 0 {
			continue
		}
		if len(said) > 0 && slices.Contains(windows, said[0]) {
			return said
		}
		return windows
	}
	return said
}

// DisplayName returns the name of a display without its screen: ":0" for "unix:0.1".
func DisplayName(name string) string {
	colon := strings.LastIndexByte(name, ':')
	if colon < 0 {
		return name
	}
	host, number := name[:colon], name[colon+1:]
	number, _, _ = strings.Cut(number, ".")
	return strings.TrimSuffix(host, "unix") + ":" + number
}
