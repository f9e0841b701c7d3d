// SPDX-License-Identifier: Apache-2.0

package journal

import (
	"fmt"
	"log/slog"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"xsched/internal/control"
)

// A line that a full disk cut off does not spoil the first one after the disk has room again.
func TestFullDisk(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	f := &series{path: path, bytes: FileBytes, log: slog.New(slog.DiscardHandler)}
	defer f.close()
	f.put(control.JournalEntry{Seq: 1, Kind: control.JournalChange, Text: "one"})
	var old unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_FSIZE, &old); err != nil {
		t.Fatal(err)
	}
	small := old
	small.Cur = uint64(f.size) + 10
	if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &small); err != nil {
		t.Fatal(err)
	}
	f.put(control.JournalEntry{Seq: 1, Kind: control.JournalChange, Text: "two"})
	f.put(control.JournalEntry{Seq: 1, Kind: control.JournalChange, Text: "three"})
	if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &old); err != nil {
		t.Fatal(err)
	}
	if !f.failed {
		t.Error("no write failed")
	}
	f.put(control.JournalEntry{Seq: 1, Kind: control.JournalChange, Text: "four"})
	f.put(control.JournalEntry{Seq: 1, Kind: control.JournalChange, Text: "five"})
	if texts, broken := readAll(t, path); fmt.Sprint(texts) != "[one four five]" || broken != 1 {
		t.Errorf("%v, %d broken; want only the cut line to be lost", texts, broken)
	}
}
