// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"time"

	"xsched/internal/clock"
	"xsched/internal/loop"
	"xsched/internal/model"
	"xsched/internal/wire"
)

// TestJudgeThreads: a thread is dead after its signs of life are old in several samples, while its program
// has work that is not suspended.
func TestJudgeThreads(t *testing.T) {
	now := clock.Now()
	fresh, old := now, now.Add(-2*threadLimit)
	busy := []loop.QueueView{{Busy: true}}
	for name, c := range map[string]struct {
		view loop.ClientView
		want string
	}{
		"works":                 {loop.ClientView{Signs: wire.Signs{Helper: fresh, Watcher: fresh}, Queues: busy}, ""},
		"watcher dead":          {loop.ClientView{Signs: wire.Signs{Helper: fresh, Watcher: old}, Queues: busy}, deadWatcher},
		"watcher never started": {loop.ClientView{Signs: wire.Signs{Helper: fresh}, Queues: busy}, deadWatcher},
		"watcher sleeps":        {loop.ClientView{Signs: wire.Signs{Helper: fresh, Watcher: old}, Queues: []loop.QueueView{{}}}, ""},
		"helper dead":           {loop.ClientView{Signs: wire.Signs{Helper: old, Watcher: fresh}, Queues: busy}, deadHelper},
		"stopped":               {loop.ClientView{Signs: wire.Signs{Helper: old, Watcher: old}, Queues: busy}, stopped},
		"previous release":      {loop.ClientView{Queues: busy}, ""},
		"suspended":             {loop.ClientView{Signs: wire.Signs{Helper: fresh, Watcher: old}, Queues: []loop.QueueView{{Busy: true, Want: model.Desired{Suspend: 3}}}}, ""},
		"hooks passed":          {loop.ClientView{Signs: wire.Signs{Helper: fresh}, Counters: wire.Counters{HookedCalls: 1}, Queues: []loop.QueueView{{Stream: true}}}, ""},
		"hooks bypassed":        {loop.ClientView{Signs: wire.Signs{Helper: fresh}, Queues: []loop.QueueView{{Stream: true}}}, bypassed},
		"held":                  {loop.ClientView{Signs: wire.Signs{Helper: fresh, Watcher: old}, Queues: busy, Held: true}, ""},
	} {
		if got := judge(&c.view, now); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
		var all threads
		var lines bytes.Buffer
		log := slog.New(slog.NewTextHandler(&lines, nil))
		for i := range threadSamples + 1 {
			all.sample(log, []loop.ClientView{c.view})
			if said := all.of(c.view.ID); (said != "") != (c.want != "" && i+1 >= threadSamples) {
				t.Errorf("%s: after %d samples %q", name, i+1, said)
			}
		}
		if n := strings.Count(lines.String(), "\n"); n != min(len(c.want), 1) {
			t.Errorf("%s: %d lines in the log, want one for each fault:\n%s", name, n, &lines)
		}
		all.sample(log, nil)
		if said := all.of(c.view.ID); said != "" {
			t.Errorf("%s: after its end %q", name, said)
		}
	}
	if threadLimit < 10*100*time.Millisecond {
		t.Error("a busy host delays a thread by a tenth of a second")
	}
}
