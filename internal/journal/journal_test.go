// SPDX-License-Identifier: Apache-2.0

package journal

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"xsched/internal/control"
	"xsched/internal/identity"
)

type fixture struct {
	*Journal
	now time.Time
}

func newFixture(file *File) *fixture {
	f := &fixture{now: time.Unix(1000, 0)}
	f.Journal = New(Options{
		Clock: func() time.Time { return f.now }, Admin: identity.User.Root, File: file,
		Render: func(e *Entry) control.JournalEntry {
			return control.JournalEntry{Seq: e.Seq, TimeNS: e.Time.UnixNano(), Kind: e.Kind, UID: e.By.User.UID, Count: e.Count, What: e.What, Text: e.After}
		},
	})
	return f
}

func (f *fixture) change(uid int, after string) {
	user := identity.OnHost(uid)
	f.Add(user, Entry{Kind: control.JournalChange, What: "hint", By: Program{User: user}, After: after})
}

// A user beyond its rate is suppressed and counted; others are not affected.
func TestRate(t *testing.T) {
	f := newFixture(nil)
	f.change(0, "root")
	for i := range 10_000 {
		f.change(1000, fmt.Sprint(i))
	}
	f.change(2000, "other")
	f.Report()
	all, last := f.After(0)
	if last != uint64(len(all)) || len(all) != 1+userBurst+1+1 {
		t.Fatalf("%d entries, last %d", len(all), last)
	}
	if all[0].After != "root" || all[len(all)-2].After != "other" {
		t.Errorf("%+v", all)
	}
	if e := all[len(all)-1]; e.Kind != control.JournalSuppressed || e.By.User.UID != 1000 || e.Count != 10_000-userBurst {
		t.Errorf("%+v", e)
	}
	f.Report() // reported once
	if more, _ := f.After(last); len(more) != 0 {
		t.Errorf("%+v", more)
	}
	f.now = f.now.Add(3 * time.Second)
	for range 100 {
		f.change(1000, "later")
	}
	if more, _ := f.After(last); len(more) != 3*userRate {
		t.Errorf("%d entries after 3 s, want %d", len(more), 3*userRate)
	}
}

// The memory is bounded, and no class or user displaces the administrator's changes.
func TestRings(t *testing.T) {
	f := newFixture(nil)
	f.change(0, "root")
	for i := range 20_000 {
		f.now = f.now.Add(time.Second)
		f.change(1000, strings.Repeat("x", 10_000))
		f.AddPreemptions([]Entry{{Kind: control.JournalPreemption, Time: f.now}})
		f.Add(identity.OnHost(3000+i), Entry{Kind: control.JournalJoined})
		f.Add(identity.OnHost(3000), Entry{Kind: control.JournalFault})
		f.Add(identity.OnHost(0), Entry{Kind: control.JournalChange, What: "grants", After: strings.Repeat("y", 10_000), Cluster: true})
	}
	all, last := f.After(0)
	if most := adminEntries + changeEntries + preemptionEntries + presenceEntries + faultEntries + clusterEntries; len(all) > most || last < 60_000 {
		t.Errorf("%d entries of %d", len(all), last)
	}
	if all[0].After != "root" || all[0].Seq != 1 {
		t.Errorf("the first change is gone: %+v", all[0])
	}
	for i := range all {
		most := maxText
		if all[i].Cluster {
			most = maxClusterText
		}
		if i > 0 && all[i].Seq <= all[i-1].Seq || len(all[i].After) > most+len("…") {
			t.Fatalf("entry %d: %+v", i, all[i])
		}
	}
	if len(f.users) > maxAccounts+1 {
		t.Errorf("%d accounts", len(f.users))
	}
	f.Report()
	f.now = f.now.Add(time.Hour)
	f.Report()
	if len(f.users) != 0 {
		t.Errorf("%d accounts after an hour", len(f.users))
	}
}

func TestTextsAreClean(t *testing.T) {
	f := newFixture(nil)
	f.change(0, "a\nb\x1b[31m\xff\u2028"+strings.Repeat("é", 200))
	all, _ := f.After(0)
	if got := all[0].After; !strings.HasPrefix(got, "a?b?[31m??éé") || len(got) > maxText+3 || strings.ContainsRune(got, '\uFFFD') {
		t.Errorf("%q", got)
	}
}

func open(t *testing.T, path string, bytes int64) *File {
	t.Helper()
	f, err := openFile(path, bytes, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func readAll(t *testing.T, path string) (texts []string, broken int) {
	t.Helper()
	broken, err := ReadFiles(path, func(e control.JournalEntry) { texts = append(texts, e.Text) })
	if err != nil {
		t.Fatal(err)
	}
	return texts, broken
}

func TestFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	file := open(t, path, FileBytes)
	f := newFixture(file)
	f.change(0, "one")
	f.AddPreemptions([]Entry{{Kind: control.JournalPreemption}}) // not in the file
	f.change(1000, "two")
	file.Close(time.Minute)
	f.change(0, "after the end") // neither blocks nor panics
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("%v, %v", info.Mode(), err)
	}
	// A line that was cut off does not spoil the next one.
	out, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = out.WriteString(`{"seq":3,"kind":"cha`)
	_ = out.Close()
	file = open(t, path, FileBytes)
	f = newFixture(file)
	f.now = f.now.Add(time.Minute)
	f.change(0, "three")
	file.Close(time.Minute)
	if texts, broken := readAll(t, path); fmt.Sprint(texts) != "[one two three]" || broken != 1 {
		t.Errorf("%v, %d broken", texts, broken)
	}
}

// The files keep their bound, and the newest entries are there.
func TestRotation(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	const bytes = 2000
	file := open(t, path, bytes)
	for i := range 500 {
		file.admin.put(control.JournalEntry{Kind: control.JournalChange, Text: fmt.Sprint(i)})
	}
	file.Close(time.Minute)
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil || len(entries) != Files {
		t.Fatalf("%v, %v", entries, err)
	}
	for _, e := range entries {
		if info, _ := e.Info(); info.Size() > bytes {
			t.Errorf("%s has %d bytes", e.Name(), info.Size())
		}
	}
	texts, broken := readAll(t, path)
	for i, text := range texts {
		if want := fmt.Sprint(500 - len(texts) + i); text != want {
			t.Fatalf("entry %d is %s, want %s", i, text, want)
		}
	}
	if len(texts) < 50 || broken != 0 {
		t.Errorf("%d entries, %d broken", len(texts), broken)
	}
}

// A log that can't begin a new file, because the daemon has no descriptor left, loses no older one and
// goes on within its bound.
func TestRotationFails(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	const bytes = 2000
	file := open(t, path, bytes)
	put := func(from, to int) {
		for i := from; i < to; i++ {
			file.admin.put(control.JournalEntry{Kind: control.JournalChange, Text: fmt.Sprint(i)})
		}
	}
	without := func(f func()) {
		var was unix.Rlimit
		if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
			t.Fatal(err)
		}
		none := was
		none.Cur = 0
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &none); err != nil {
			t.Fatal(err)
		}
		defer func() { _ = unix.Setrlimit(unix.RLIMIT_NOFILE, &was) }()
		f()
	}
	put(0, 100)
	before, _ := readAll(t, path)
	without(func() { put(100, 150) })
	after, broken := readAll(t, path)
	if len(after) != len(before)+50 || after[0] != before[0] || after[len(after)-1] != "149" || broken != 0 {
		t.Errorf("%d entries from %s on, then %d from %s to %s, %d broken", len(before), before[0], len(after), after[0], after[len(after)-1], broken)
	}
	without(func() { put(150, 650) })
	if info, err := os.Stat(path); err != nil || info.Size() > Files*bytes || info.Size() < (Files-1)*bytes {
		t.Errorf("the file has %d bytes, %v", info.Size(), err)
	}
	put(650, 651)
	file.Close(time.Minute)
	if texts, _ := readAll(t, path); texts[len(texts)-1] != "650" {
		t.Errorf("the last entry is %s", texts[len(texts)-1])
	}
}

// A user's flood, for as long as it likes, displaces nothing that an administrator did.
func TestFloodKeepsAdministrators(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	const bytes = 2000
	file := open(t, path, bytes)
	f := newFixture(file)
	f.change(0, "before")
	for i := range 1000 {
		f.now = f.now.Add(time.Second)
		f.change(1000, fmt.Sprint(i))
		if i == 995 {
			f.change(0, "between")
		}
		for i%100 == 0 && len(file.queue) > 0 { // the disk follows
			time.Sleep(time.Millisecond)
		}
	}
	for range 100 {
		f.change(1000, "suppressed")
	}
	f.Report()
	file.Close(time.Minute)
	texts, broken := readAll(t, path)
	if broken != 0 || len(texts) > 200 || texts[0] != "before" {
		t.Fatalf("%d broken, %d entries, %q", broken, len(texts), texts)
	}
	if got := fmt.Sprint(texts[len(texts)-50:]); !strings.Contains(got, "995 between 996") {
		t.Errorf("entries are not in the order of time: %s", got)
	}
	if admins, err := os.ReadFile(path); err != nil || strings.Count(string(admins), "\n") != 2 {
		t.Errorf("%s, %v", admins, err)
	}
}

// While the disk stands still, users leave room in the queue.
func TestQueueKeepsRoom(t *testing.T) {
	file := &File{queue: make(chan line, fileQueue)}
	for range 2 * fileQueue {
		file.Write(control.JournalEntry{}, true)
	}
	for range fileQueue - userQueue {
		file.Write(control.JournalEntry{}, false)
	}
	if got := file.dropped.Load(); len(file.queue) != fileQueue || got != 2*fileQueue-userQueue {
		t.Errorf("%d queued, %d dropped", len(file.queue), got)
	}
}

func TestFileRefusesOthers(t *testing.T) {
	dir := t.TempDir()
	log := slog.New(slog.DiscardHandler)
	link := filepath.Join(dir, "link")
	if err := os.Symlink(filepath.Join(dir, "target"), link); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenFile(link, log); err == nil || !strings.Contains(err.Error(), "symbolic link") {
		t.Errorf("symbolic link: %v", err)
	}
	if _, err := OpenFile(filepath.Join(dir, "none", "audit.log"), log); err == nil || !strings.Contains(err.Error(), "choose a file") {
		t.Errorf("a folder that is missing: %v", err)
	}
	if _, err := OpenFile(dir, log); err == nil {
		t.Error("a folder was taken")
	}
	if _, err := ReadFiles(filepath.Join(dir, "none"), func(control.JournalEntry) {}); err == nil || !strings.Contains(err.Error(), "--audit") {
		t.Errorf("missing file: %v", err)
	}
}

// FuzzAudit reads arbitrary files: no panic, no entry without a kind, bounded memory for a line.
func FuzzAudit(f *testing.F) {
	f.Add([]byte(`{"seq":1,"time_ns":5,"kind":"change","uid":0,"text":"root changed the policy"}` + "\n"))
	f.Add([]byte("{\n\n\x00\xff{}"))
	f.Add([]byte(strings.Repeat("x", maxLine+1) + "\n" + `{"kind":"fault"}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		n := 0
		broken, err := read(strings.NewReader(string(b)), func(e control.JournalEntry) bool {
			if n++; e.Kind == "" {
				t.Fatal("an entry without a kind")
			}
			return true
		})
		if lines := strings.Count(string(b), "\n") + 1; err != nil || n+broken > lines {
			t.Fatalf("%d entries and %d broken of %d lines, %v", n, broken, lines, err)
		}
	})
}
