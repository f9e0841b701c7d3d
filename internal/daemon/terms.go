// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"sync"
	"sync/atomic"

	"xsched/internal/config"
	"xsched/internal/control"
	"xsched/internal/identity"
	"xsched/internal/loop"
	"xsched/internal/model"
)

// terms are what the rules of the configuration and the grants give to programs.
type terms struct {
	changing   sync.Mutex // one change at a time
	configured atomic.Pointer[configured]
	grants     atomic.Pointer[grants]
}

// configured is a configuration in force.
type configured struct {
	number uint64 // increases with every reload
	rules  config.Rules
	reply  control.ConfigReply
	read   fileState // of the configuration file
}

// of returns what the rules and grants give to a process.
func (t *terms) of(who loop.Identity) loop.Terms {
	now, granted := t.configured.Load(), t.grants.Load()
	g := now.rules.For(who.User, who.Command, who.Program)
	out := loop.Terms{Rule: g.Rule, Hint: g.Hints, Granted: g.Priority, Number: now.number + granted.number}
	pod := granted.of(&who)
	pod.apply(&out)
	return out
}

// podOf returns what is granted to a process.
func (t *terms) podOf(who *loop.Identity) podGrant { return t.grants.Load().of(who) }

// podName names the pod of a process, also after the end of its grants: "namespace/pod/container".
func (t *terms) podName(who *loop.Identity) string {
	if who.Program == nil || who.Program.Pod.UID == "" {
		return ""
	}
	g := t.grants.Load()
	for _, of := range []identity.Pod{who.Program.Pod, who.Program.Pod.Whole()} {
		if pod, ok := g.pods[of]; ok {
			return pod.name()
		}
		if name, ok := g.past.names[of]; ok {
			return name
		}
	}
	return ""
}

// groupOf returns the group of pods that a program is in; empty: none, or its grant has ended.
func (t *terms) groupOf(who *loop.Identity) string {
	var out loop.Terms
	pod := t.podOf(who)
	pod.apply(&out)
	return out.Grant.Group
}

// changed returns the terms of clients whose grants differ.
func (t *terms) changed(old, now *grants, clients []loop.Identity) map[model.SessionID]loop.Terms {
	out := map[model.SessionID]loop.Terms{}
	for i := range clients {
		who := &clients[i]
		before, after := old.of(who), now.of(who)
		if old.unsure && who.Program != nil && who.Program.Pod.UID != "" || !before.same(&after) {
			out[who.ID] = t.of(*who)
		}
	}
	return out
}
