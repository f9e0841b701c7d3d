// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"xsched/internal/control"
)

func TestLogLines(t *testing.T) {
	at := time.Date(2026, 1, 31, 15, 4, 5, 678e6, time.UTC)
	entries := []control.JournalEntry{
		{TimeNS: at.UnixNano(), Kind: control.JournalPreemption, UID: 1000, User: "alice", Text: "serve.py preempted train.py for 3.10 ms"},
		{TimeNS: at.Add(time.Second).UnixNano(), Kind: control.JournalChange, UID: 0, User: "root", Text: "root changed the policy from HPF to FIFO"},
		{TimeNS: at.Add(2 * time.Second).UnixNano(), Kind: control.JournalLeft, UID: 1000, User: "alice", Text: "train.py left: \x1b[31mprocess ended"},
	}
	show := func(f logFilter, lines int) string {
		var b strings.Builder
		if err := printLast(append([]control.JournalEntry(nil), entries...), &f, lines, func(e *control.JournalEntry) error { return writeEntry(&b, e, time.UTC) }); err != nil {
			t.Fatal(err)
		}
		return b.String()
	}
	all := `2026-01-31 15:04:05.678  preemption  serve.py preempted train.py for 3.10 ms
2026-01-31 15:04:06.678  change      root changed the policy from HPF to FIFO
2026-01-31 15:04:07.678  left        train.py left: ?[31mprocess ended
`
	if got := strings.ReplaceAll(show(logFilter{}, 10), printable("\x1b"), "?"); got != all {
		t.Errorf("got\n%swant\n%s", got, all)
	}
	for _, test := range []struct {
		filter logFilter
		lines  int
		want   []string
	}{
		{logFilter{}, 1, []string{"left"}},
		{logFilter{kinds: []string{"change", "preemption"}}, 10, []string{"preemption", "change"}},
		{logFilter{user: "alice"}, 10, []string{"preemption", "left"}},
		{logFilter{user: "0"}, 10, []string{"change"}},
		{logFilter{since: at.Add(time.Second)}, 10, []string{"change", "left"}},
	} {
		var kinds []string
		for line := range strings.Lines(show(test.filter, test.lines)) {
			kinds = append(kinds, strings.Fields(line)[2])
		}
		if strings.Join(kinds, " ") != strings.Join(test.want, " ") {
			t.Errorf("%+v: %v, want %v", test.filter, kinds, test.want)
		}
	}
}

func TestParseSince(t *testing.T) {
	now := time.Date(2026, 1, 31, 15, 0, 0, 0, time.UTC)
	for text, want := range map[string]string{
		"10m": "2026-01-31T14:50:00Z", "2026-01-30": "2026-01-30T00:00:00Z", "2026-01-30 12:30": "2026-01-30T12:30:00Z", "2026-01-30T12:30:05Z": "2026-01-30T12:30:05Z",
	} {
		if got, err := parseSince(text, now); err != nil || got.Format(time.RFC3339) != want {
			t.Errorf("%s: %v, %v", text, got, err)
		}
	}
	for _, text := range []string{"-5m", "yesterday", "1"} {
		if _, err := parseSince(text, now); err == nil {
			t.Errorf("%s was taken", text)
		}
	}
}

// A redacted bundle tells nothing about other users but numbers, and has no command lines.
func TestRedaction(t *testing.T) {
	hide := redactor{self: os.Geteuid()}
	list := control.List{Processes: []control.Process{
		{PID: 1, UID: os.Geteuid(), User: "me", Command: "python /srv/own.py --token secret1", Name: "own.py --token secret4"},
		{PID: 2, UID: 4242, User: "alice", Command: "/x/foreign --token secret2", Container: "/docker/c0ffee"},
		{PID: 3, UID: os.Geteuid(), User: "alice", Command: "boxed secret3", Container: "/docker/c0ffee", PriorityReason: "c0ffee", Namespace: "podspace", Pod: "podname", PodContainer: "podbox"},
		{
			PID: 4, UID: 4242, Rule: "rulename", Group: "groupname", Hints: control.Hints{Priority: 9, Gang: "gangname"},
			Queues: []control.Queue{{Hints: control.Hints{Gang: "gangname of a queue"}}},
		},
	}}
	hide.list(&list)
	history := control.History{Devices: []control.DeviceHistory{{Spans: []control.Span{{PID: 2, Name: "foreign"}}, Series: []control.Series{{PID: 2, Name: "foreign", Pod: "podspace/podname"}}}}}
	hide.history(&history)
	journal := control.Journal{Entries: []control.JournalEntry{
		{PID: 2, UID: 4242, User: "alice", Container: "/docker/c0ffee", Kind: control.JournalChange, What: "hint", Before: "priority=0", After: "priority=3", Text: "alice changed foreign"},
		{UID: 4242, User: "alice", Kind: control.JournalChange, What: "refused", After: "uid 0 in container c0ffee", Text: "alice"},
		{UID: 4242, Kind: control.JournalChange, What: "grants of dra", After: "1 added: +podspace/podname", Pod: "podspace/podname", ByPod: "podspace/podname"},
		{PID: 4, Kind: control.JournalChange, What: "hint", Before: "priority=4 gang=none", After: "priority=6 gang=gangname of a queue"},
		{PID: 4, Kind: control.JournalChange, What: "hint of queue 1", Before: "gang=gangname per_queue=true", After: "gang=gangname=2 per_queue=false"},
		{PID: 4, Kind: control.JournalPreemption, Detail: "podspace/groupname", Text: "groupname"},
		{Kind: control.JournalPreemption, Detail: "3 more pairs of programs"},
	}}
	hide.journal(&journal)
	config := control.ConfigReply{
		Values: []control.ConfigValue{{Key: "policy", Value: "HPF"}}, Caps: []control.ConfigCap{{Whom: "user alice", Priority: 7}},
		Rules: []control.ConfigRule{{Name: "alice", Match: "command foreign", Hints: "priority=5 gang=gangname per-queue=true"}},
	}
	hide.config(&config)
	b, err := json.Marshal([]any{list, history, journal, config})
	if err != nil {
		t.Fatal(err)
	}
	for _, hidden := range []string{"secret", "token", "alice", "foreign", "c0ffee", "boxed", "/srv", "podspace", "podname", "podbox", "rulename", "groupname", "gangname"} {
		if strings.Contains(string(b), hidden) {
			t.Errorf("%s is in %s", hidden, b)
		}
	}
	job, gang := pseudonym("groupname"), pseudonym("gangname") // the same everywhere
	for _, kept := range []string{
		`"own.py"`, `"me"`, `"uid":4242`, `"priority=3"`, `"container":"name-`, `"priority":7`, `"group":"` + job + `"`, `"gang":"` + gang + `"`,
		`"detail":"` + pseudonym("podspace") + "/" + job + `"`, `"before":"priority=4 gang=none"`, `"after":"priority=6 gang=name-`,
		`"before":"gang=` + gang + ` per_queue=true"`, `"hints":"priority=5 gang=` + gang + ` per-queue=true"`, `"3 more pairs of programs"`,
	} {
		if !strings.Contains(string(b), kept) {
			t.Errorf("%s is missing in %s", kept, b)
		}
	}
}

// Equal parts give equal bytes, in the order of the parts.
func TestBundleIsDeterministic(t *testing.T) {
	parts := []part{{Name: "b.json", About: "second", Bytes: 2, data: []byte("{}")}, {Name: "a.json", About: "first", Error: "no daemon"}, {Name: "c.txt", About: "third", Bytes: 1, data: []byte("x")}}
	m := manifest{Version: "1", Created: time.Unix(1000, 5).UTC(), Redacted: true}
	var one, two bytes.Buffer
	size, err := writeBundle(&one, m, parts)
	if _, again := writeBundle(&two, m, parts); err != nil || again != nil || !bytes.Equal(one.Bytes(), two.Bytes()) || size != int64(one.Len()) {
		t.Fatalf("%v, %v, %d and %d bytes", err, again, one.Len(), two.Len())
	}
	zip, err := gzip.NewReader(&one)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for archive := tar.NewReader(zip); ; {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, h.Name)
		if h.Uid != 0 || h.Uname != "" || h.Mode != 0o600 {
			t.Errorf("%+v", h)
		}
	}
	if got := strings.Join(names, " "); got != "xsched-support/manifest.json xsched-support/b.json xsched-support/c.txt" {
		t.Errorf("%s", got)
	}
	var text strings.Builder
	writeContents(&text, "x.tar.gz", 77, false, parts)
	want := `wrote x.tar.gz (77 bytes, redacted; --full includes command lines and names)
  b.json  2  second
  a.json  0  first: no daemon
  c.txt   1  third
`
	if text.String() != want {
		t.Errorf("got\n%swant\n%s", text.String(), want)
	}
}
