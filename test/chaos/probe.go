// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"time"

	"xsched/internal/control"
	"xsched/internal/control/client"
)

// answerBound is how long a daemon that is well may take to answer a question of root about its state.
const answerBound = 2 * time.Second

// ask checks that the daemon answers, whatever its guardian, its disk or its clients do.
func (w *world) ask() {
	defer close(w.asking)
	c := client.New(filepath.Join(w.dir, "control.sock"))
	defer c.Close()
	for !w.closing.Load() {
		time.Sleep(100 * time.Millisecond)
		before := w.daemon.health()
		if before.native || before.old || before.ready == 0 {
			continue
		}
		begin := now()
		_, err := call(2*answerBound, c.Stats)
		took, after := w.stalls.elapsed(begin, now()), w.daemon.health()
		// A wedge or a stop may have begun and ended meanwhile.
		disturbed := after.native || after.since != before.since || w.closing.Load() || w.ledger.recent(2*answerBound,
			"daemon-stop", "both-stop", "daemon-wedge", "daemon-files", "daemon-memory", "flood-connections", "clock-step")
		if took > answerBound && !disturbed {
			w.ledger.violate(begin, "answer", "daemon", "no answer to /stats for %v: %v", took.Round(time.Millisecond), err)
		}
		if !disturbed && err == nil {
			w.ledger.answered(begin, took)
		}
	}
}

// checkRecords makes a change and checks that the daemon logs it and writes it to its audit log: faults
// of the clock and of the disk must not silence either for longer than they last.
func (w *world) checkRecords(say func(rule, role, format string, args ...any)) {
	log, audit := w.daemon.log.Total(), w.auditSize()
	for _, name := range []string{"RR", "HPF"} {
		_, err := call(time.Second, func(ctx context.Context) (control.PolicyReply, error) {
			return w.daemon.client.SetPolicy(ctx, control.PolicyRequest{Name: name})
		})
		if err != nil {
			say("control", "daemon", "can't set a policy: %v", err)
			return
		}
	}
	if !w.eventually(2*time.Second, func() bool { return strings.Contains(w.daemon.log.Since(log), "policy changed") }) {
		say("log", "daemon", "a change of the policy is not in the log after 2 s")
	}
	if !w.eventually(2*time.Second, func() bool { return w.auditSize() != audit }) {
		say("journal", "daemon", "a change of the policy is not in the audit log after 2 s")
	}
}

// auditSize changes with every entry of root in the audit log.
func (w *world) auditSize() int64 {
	st, err := os.Stat(w.auditFile())
	if err != nil {
		return -1
	}
	return st.Size()
}

func (w *world) auditFile() string { return filepath.Join(w.dir, "audit.log") }
