// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"testing"
	"time"

	"xsched/internal/control"
	"xsched/internal/identity"
	"xsched/internal/journal"
)

// TestProgramsOfOneName: PIDs tell two programs of one name apart, and only those.
func TestProgramsOfOneName(t *testing.T) {
	d := &Daemon{}
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
