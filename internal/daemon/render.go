// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"xsched/internal/control"
	"xsched/internal/identity"
	"xsched/internal/journal"
	"xsched/internal/loop"
)

// everything is the caller of the audit file: nothing is hidden from it.
var everything = control.Caller{User: identity.OnHost(0)}

// mayKnow reports whether a caller may know of a program.
func mayKnow(c control.Caller, p *journal.Program) bool {
	return visible(c, &loop.ClientView{Identity: loop.Identity{User: p.User, PIDNamespace: p.PIDNamespace}})
}

// sees reports whether a caller may read an entry. A caller in a container reads entries about its own
// programs, and about settings that concern all. The pods of a cluster are the administrator's business.
func (h *chronicle) sees(c control.Caller, e *journal.Entry) bool {
	switch {
	case e.Cluster:
		return h.access.administers(c.User)
	case e.Program.PID != 0:
		return mayKnow(c, &e.Program)
	case e.What == changePolicy || e.What == changeMode:
		return true
	}
	return c.User.Host() || e.Kind == control.JournalChange && mayKnow(c, &e.By)
}

// render returns an entry as a caller may see it.
func (h *chronicle) render(e *journal.Entry, c control.Caller) control.JournalEntry {
	out := control.JournalEntry{
		Seq: e.Seq, TimeNS: e.Time.UnixNano(), Kind: e.Kind, DurationNS: e.Duration.Nanoseconds(), Count: e.Count, Bytes: e.Bytes, Device: e.Device,
		What: e.What, Before: e.Before, After: e.After, Detail: e.Detail,
	}
	p, by := h.shown(c, &e.Program), h.shown(c, &e.By)
	out.PID, out.ByPID, out.Pod, out.ByPod = p.pid, by.pid, p.pod, by.pod
	who := &e.By
	if e.Kind != control.JournalChange && e.Kind != control.JournalSuppressed {
		who = &e.Program
	}
	author := "another user"
	if who == &e.By && who.User == h.access.self() && who.PID == 0 {
		author = "the daemon"
	}
	if mayKnow(c, who) {
		out.UID, out.User, out.Container = who.User.UID, h.users.of(who.User), who.User.Container
		if author != "the daemon" {
			if author = out.User; author == strconv.Itoa(out.UID) {
				author = "uid " + author
			}
		}
	} else {
		out.UID = -1
	}
	if p.text == by.text && p.pid != by.pid { // two programs of one name
		p.text, by.text = fmt.Sprintf("%s (%d)", p.text, p.pid), fmt.Sprintf("%s (%d)", by.text, by.pid)
	}
	out.Text = sentence(e, p.text, by.text, author)
	return out
}

// shownProgram is a program as a caller may see it.
type shownProgram struct {
	pid  int
	text string // empty: unknown
	pod  string
}

func (h *chronicle) shown(c control.Caller, p *journal.Program) shownProgram {
	if p.PID == 0 {
		return shownProgram{}
	}
	if !mayKnow(c, p) {
		return shownProgram{text: "another program"}
	}
	pid := p.PID
	if c.PIDNamespace != 0 {
		pid = p.LocalPID
	}
	switch {
	case p.Pod != "":
		return shownProgram{pid, p.Pod, p.Pod}
	case p.Name == "" || !c.Owns(p.User):
		return shownProgram{pid, fmt.Sprintf("process %d", pid), ""}
	}
	return shownProgram{pid, p.Name, ""}
}

// sentence says what happened.
func sentence(e *journal.Entry, program, by, author string) string {
	switch e.Kind {
	case control.JournalPreemption:
		return preemption(e, program, by)
	case control.JournalChange:
		return author + " " + changed(e, program)
	case control.JournalMove:
		return move(e, program, by)
	case control.JournalJoined:
		if e.Detail != "" {
			return program + " joined: " + e.Detail
		}
		return program + " joined"
	case control.JournalLeft:
		return program + " left: " + e.Detail
	case control.JournalFault:
		text := e.Detail
		if program != "" {
			text = program + ": " + text
		}
		if e.Device != "" {
			text += " on " + e.Device
		}
		return text
	case control.JournalSuppressed:
		return fmt.Sprintf("%d entries of %s were suppressed: too many", e.Count, author)
	}
	return e.Detail
}

func preemption(e *journal.Entry, program, by string) string {
	times := " for "
	if e.Count > 1 {
		times = fmt.Sprintf(" %d times for ", e.Count)
	}
	times += duration(e.Duration)
	switch {
	case program == "":
		return fmt.Sprintf("%s: %d preemptions, %s", e.Detail, e.Count, duration(e.Duration))
	case e.Hand:
		return program + " was suspended by hand" + times
	case e.Group:
		return strings.TrimSpace(program+" was suspended with its group "+e.Detail) + " on all nodes" + times
	case by == "":
		return program + " was preempted" + times
	case e.Yield:
		return by + " ran before " + program + times
	}
	return by + " preempted " + program + times
}

// duration rounds to three digits: "3.12 ms".
func duration(d time.Duration) string {
	switch {
	case d >= 10*time.Second:
		return fmt.Sprintf("%.0f s", d.Seconds())
	case d >= time.Second:
		return fmt.Sprintf("%.2f s", d.Seconds())
	case d >= 10*time.Millisecond:
		return fmt.Sprintf("%.1f ms", float64(d)/1e6)
	case d >= time.Millisecond:
		return fmt.Sprintf("%.2f ms", float64(d)/1e6)
	}
	return fmt.Sprintf("%.0f us", float64(d)/1e3)
}

// changed completes "alice ..." for a change.
func changed(e *journal.Entry, program string) string {
	var text string
	switch e.What {
	case changeSuspend:
		text = "suspended " + program
	case changeResume:
		text = "resumed " + program
	case changeEvict:
		text = "ordered memory of " + program + " to host memory"
	case changeRestore:
		text = "ordered memory of " + program + " back"
	case changeAttach:
		text = "attached " + program
	case changeDetach:
		text = "detached " + program
	case changeRefused:
		return "was refused: " + e.After
	default:
		text = "changed the " + e.What
		if program != "" {
			text += " of " + program
		}
	}
	if e.Device != "" {
		text += " on " + e.Device
	}
	if e.Before == e.After && e.After != "" && e.What != changeAttach {
		return text + ": " + e.After + " as before"
	}
	if e.Before != e.After && e.What != changeSuspend && e.What != changeResume && e.What != changeDetach && e.What != changeEvict {
		switch {
		case e.Before == "":
			text += " to " + e.After
		case e.After == "":
			text += " from " + e.Before
		default:
			text += " from " + e.Before + " to " + e.After
		}
	}
	return text
}
