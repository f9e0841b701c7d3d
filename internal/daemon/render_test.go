// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"slices"
	"testing"
	"time"

	"xsched/internal/control"
	"xsched/internal/history"
	"xsched/internal/identity"
	"xsched/internal/journal"
	"xsched/internal/loop"
	"xsched/internal/model"
)

// TestProgramsOfOneName: PIDs tell two programs of one name apart, and only those.
func TestProgramsOfOneName(t *testing.T) {
	d := &chronicle{access: &access{}, terms: &terms{}, users: &userNames{}}
	e := journal.Entry{Kind: control.JournalPreemption, Count: 2, Duration: 3 * time.Millisecond}
	e.Program = journal.Program{PID: 11, User: identity.OnHost(1000), Name: "train.py"}
	e.By = journal.Program{PID: 12, User: identity.OnHost(1000), Name: "train.py"}
	stranger := control.Caller{User: identity.User{UID: 7, Container: "c"}, PIDNamespace: 9}
	for _, c := range []struct {
		by     string
		caller control.Caller
		want   string
	}{
		{"train.py", everything, "train.py (12) preempted train.py (11) 2 times for 3.00 ms"},
		{"serve.py", everything, "serve.py preempted train.py 2 times for 3.00 ms"},
		{"train.py", stranger, "another program preempted another program 2 times for 3.00 ms"},
	} {
		e.By.Name = c.by
		if got := d.render(&e, c.caller).Text; got != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
}

// TestHoldOfAGroupIsOneEntry: the programs of a container that a group's hold suspended have one entry.
// Other containers of the group have their own, which are for their readers.
func TestHoldOfAGroupIsOneEntry(t *testing.T) {
	d := &chronicle{access: &access{}, terms: &terms{}, users: &userNames{}}
	const uid = "0d3ad1a8-9f4f-4d7a-8a86-6f1a4bd5c001"
	d.terms.grants.Store(newGrants(1, map[string][]control.Grant{
		"dra": {{ID: "a", Namespace: "ml", Pod: "train-0", PodUID: uid, Group: "job"}},
	}))
	victim := func(pid int, container string) loop.Identity {
		return loop.Identity{
			PID: pid, LocalPID: pid, PIDNamespace: 9, User: identity.User{UID: 0, Container: container},
			Program: &identity.Program{Pod: identity.Pod{UID: identity.PodUID(uid)}},
		}
	}
	hold := func(pid int, container string, device model.DeviceID, long time.Duration) history.Preemption {
		return history.Preemption{Victim: victim(pid, container), At: model.Time(20 - pid), Device: device, Group: true, Count: uint64(pid % 3), Time: long}
	}
	got := d.preemptions([]history.Preemption{
		hold(11, "c", 1, time.Second), hold(12, "c", 2, 3*time.Second), hold(13, "d", 1, time.Second), hold(14, "c", 1, 2*time.Second),
		{Victim: victim(11, "c"), Device: 1, Hand: true, Count: 1, Time: time.Second},
	})
	var texts []string
	for i := range got {
		texts = append(texts, sentence(&got[i], got[i].Program.Pod, "", ""))
	}
	want := []string{
		"ml/train-0 was suspended with its group ml/job on all nodes 2 times for 3.00 s",
		"ml/train-0 was suspended with its group ml/job on all nodes for 1.00 s",
		"ml/train-0 was suspended by hand for 1.00 s",
	}
	if !slices.Equal(texts, want) || got[0].Device != "" || got[1].Device == "" {
		t.Errorf("%q on %q and %q", texts, got[0].Device, got[1].Device)
	}
	if got[0].Time.Sub(got[1].Time) != 2 { // the end of the last hold: that of 11, not of 14
		t.Errorf("ended at %v and %v", got[0].Time, got[1].Time)
	}
}
