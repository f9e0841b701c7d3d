// SPDX-License-Identifier: Apache-2.0

package logging

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// TestJournal: each line has the priority of its level and none of the fields that the journal keeps.
func TestJournal(t *testing.T) {
	var out bytes.Buffer
	log := slog.New(NewJournal(&out, slog.LevelInfo)).With("pid", 7)
	log.Debug("left out")
	log.Info("ready")
	log.Warn("slow", "time", "1s")
	log.WithGroup("device").Error("lost", "level", 3)
	log.Log(t.Context(), slog.LevelError+4, "worse")
	const want = "<6>msg=ready pid=7\n<4>msg=slow pid=7 time=1s\n<3>msg=lost pid=7 device.level=3\n<3>msg=worse pid=7\n"
	if got := out.String(); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
}

// TestIsJournal: only the file that JOURNAL_STREAM names is the journal.
func TestIsJournal(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "f"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		t.Fatal(err)
	}
	for value, want := range map[string]bool{
		"": false, "1": false, ":": false, fmt.Sprintf("%d:%d", st.Dev, st.Ino): true, fmt.Sprintf("%d:%d", st.Dev, st.Ino+1): false,
	} {
		t.Setenv("JOURNAL_STREAM", value)
		if got := IsJournal(f); got != want {
			t.Errorf("JOURNAL_STREAM=%s: %v", value, got)
		}
	}
	if IsJournal(&bytes.Buffer{}) {
		t.Error("a buffer is the journal")
	}
}
