// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"os"

	"golang.org/x/term"

	"xsched/internal/doctor"
)

// colours reports whether a text may contain colours.
type colours bool

// colours are for terminals only; NO_COLOR and TERM=dumb disable them.
func (a *app) colours() colours {
	f, ok := a.stdout.(*os.File)
	return colours(ok && term.IsTerminal(int(f.Fd())) && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb")
}

// SGR codes of the states of a check.
var statusColours = map[doctor.Status]string{
	doctor.OK: "32", doctor.Note: "36", doctor.Limited: "33", doctor.Missing: "1;31",
}

// status returns a state in its colour, padded to the longest one.
func (c colours) status(s doctor.Status) string {
	const width = len(doctor.Limited)
	text := string(s)
	for len(text) < width {
		text += " "
	}
	if !c {
		return text
	}
	return "\x1b[" + statusColours[s] + "m" + text + "\x1b[0m"
}
