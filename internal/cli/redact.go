// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"crypto/sha256"
	"encoding/hex"
	"regexp"
	"strings"

	"xsched/internal/control"
)

// hostFiles are the files of the host in a support bundle, as patterns. None depends on a user.
var hostFiles = []string{"etc/os-release", "proc/driver/*/version", "sys/class/drm/card*/device/driver/module/version"}

// redactor removes what identifies other users, and command lines. Numbers (PIDs, uids) stay.
type redactor struct{ self int }

// list keeps the short names of the caller's own programs.
func (r *redactor) list(l *control.List) {
	for i := range l.Processes {
		p := &l.Processes[i]
		p.Command, p.Name = control.TenantName(p.Command), "" // Name may have an argument
		if p.UID != r.self || p.Container != "" {
			p.Command, p.User = "", ""
		}
		p.Container = pseudonym(p.Container)
		p.Namespace, p.Pod, p.PodContainer = pseudonym(p.Namespace), pseudonym(p.Pod), pseudonym(p.PodContainer)
		p.Group, p.Hints.Gang = pseudonym(p.Group), pseudonym(p.Hints.Gang)
		for k := range p.Queues {
			p.Queues[k].Hints.Gang = pseudonym(p.Queues[k].Hints.Gang)
		}
		p.PriorityReason, p.Rule = "", "" // may name a container, a user or a program
	}
}

// config keeps settings and limits. Whom limits and rules apply to may name users and programs.
func (r *redactor) config(c *control.ConfigReply) {
	for i := range c.Caps {
		c.Caps[i].Whom, _, _ = strings.Cut(c.Caps[i].Whom, " ")
	}
	for i := range c.Rules {
		c.Rules[i].Name, c.Rules[i].Match, c.Rules[i].Hints = "", "", gangHidden(c.Rules[i].Hints)
	}
}

// history keeps no names: whose programs they are is not known here.
func (r *redactor) history(h *control.History) {
	for i := range h.Devices {
		d := &h.Devices[i]
		for k := range d.Spans {
			d.Spans[k].Name = ""
		}
		for k := range d.Series {
			d.Series[k].Name, d.Series[k].Pod = "", pseudonym(d.Series[k].Pod)
		}
	}
}

// journal keeps the fields and drops the sentences, which name programs and users.
func (r *redactor) journal(j *control.Journal) {
	for i := range j.Entries {
		e := &j.Entries[i]
		e.Text = ""
		if e.UID != r.self || e.Container != "" {
			e.User = ""
		}
		if e.What == "refused" || strings.HasPrefix(e.What, "grants") { // may name containers and pods
			e.After = ""
		}
		e.Before, e.After = gangHidden(e.Before), gangHidden(e.After)
		if namespace, group, ok := strings.Cut(e.Detail, "/"); ok && e.Kind == control.JournalPreemption {
			e.Detail = pseudonym(namespace) + "/" + pseudonym(group)
		}
		e.Container, e.Pod, e.ByPod = pseudonym(e.Container), pseudonym(e.Pod), pseudonym(e.ByPod)
	}
}

// gangSet is the gang in a list of hints. Its name may have spaces; only per_queue follows it.
var gangSet = regexp.MustCompile(`\bgang=(.+?)( per[-_]queue=(?:true|false))?$`)

// gangHidden replaces the name of a gang in a list of hints.
func gangHidden(hints string) string {
	at := gangSet.FindStringSubmatchIndex(hints)
	if at == nil || hints[at[2]:at[3]] == "none" {
		return hints
	}
	return hints[:at[2]] + pseudonym(hints[at[2]:at[3]]) + hints[at[3]:]
}

// pseudonym replaces a name by a number that is the same in the whole bundle.
func pseudonym(name string) string {
	if name == "" {
		return ""
	}
	sum := sha256.Sum256([]byte(name))
	return "name-" + hex.EncodeToString(sum[:4])
}
