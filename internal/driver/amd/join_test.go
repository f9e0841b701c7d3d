// SPDX-License-Identifier: Apache-2.0

package amd

import (
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"

	"golang.org/x/sys/unix"
)

// wantRings checks that each compute queue has its ring, or none where the ring is 0, with a reason.
func wantRings(t *testing.T, f Found, want map[int]uint64, reason string) {
	t.Helper()
	numbered, apart := 0, 0
	for _, q := range f.Queues {
		switch ring, known := want[q.ID]; {
		case q.ID < 0:
			apart++
		case q.Type != "compute":
		case !known || q.Ring != ring || (ring == 0) != (q.Unknown != ""):
			t.Errorf("queue %d has ring %#x, want %#x", q.ID, q.Ring, ring)
		case ring == 0 && !strings.Contains(q.Unknown, reason):
			t.Errorf("queue %d: %q, want %q", q.ID, q.Unknown, reason)
		default:
			numbered++
		}
	}
	if numbered != len(want) {
		t.Errorf("%d of %d queues are right (%d without a number)", numbered, len(want), apart)
	}
}

// TestReusedNumber: queue 1 is destroyed and its number given to the newest queue. The numbers then
// contradict creation order, and all sizes are equal.
func TestReusedNumber(t *testing.T) {
	s := realMachine(t)
	addQueue(s.Sysfs.(fstest.MapFS), 1, 1<<20, 0, 190)
	f, err := s.Find(94314)
	if err != nil {
		t.Fatal(err)
	}
	wantRings(t, f, map[int]uint64{0: realRings[0], 2: realRings[1], 3: realRings[2], 4: realRings[3], 1: realRings[4]}, "")
	// A copy has no creation order: the four stay unknown, the unique size does not.
	s.Ordered = false
	if f, err = s.Find(94314); err != nil {
		t.Fatal(err)
	}
	wantRings(t, f, map[int]uint64{0: realRings[0], 1: 0, 2: 0, 3: 0, 4: 0}, "4 queues of 1048576 bytes")
	rings := map[uint64]bool{}
	for _, q := range f.Queues {
		if q.ID < 0 {
			rings[q.Ring] = true
		}
	}
	for _, ring := range realRings[1:] {
		if !rings[ring] {
			t.Errorf("ring %#x is not listed at all", ring)
		}
	}
	i := &inspection{pid: 94314, found: &f, notes: f.Notes}
	var out strings.Builder
	i.WriteTable(&out)
	if n := strings.Count(out.String(), "\nunknown "); n != 4 || !strings.Contains(out.String(), "\n1        compute  63420  0000:05:00.0  gfx942  unknown ") {
		t.Errorf("%d rows without a number in\n%s", n, out.String())
	}
	if notes := i.Notes(); len(notes) != 2 || !strings.Contains(notes[0].Text, "unknown for queues 1, 2, 3, 4: 4 queues") {
		t.Errorf("%+v", notes)
	}
	out.Reset()
	i.WritePython(&out)
	if !strings.Contains(out.String(), `{"queue_id": 1, "type": "compute", "gpu_id": 63420, "ring": None,`) || strings.Contains(out.String(), "0x0,") {
		t.Error(out.String())
	}
}

// TestAnyNumbering: whatever numbers a driver hands out, no queue gets another's ring.
func TestAnyNumbering(t *testing.T) {
	s := realMachine(t)
	sysfs := s.Sysfs.(fstest.MapFS)
	delete(s.Debug.(fstest.MapFS), hqdsFile)
	for range 100 {
		for name := range sysfs {
			if strings.HasPrefix(name, "proc/94314/queues/") {
				delete(sysfs, name)
			}
		}
		numbers, inode := rand.Perm(1100)[:6], uint64(1+rand.IntN(1000))
		want := map[int]uint64{}
		for i, ring := range realRings {
			size := 1 << 20
			if i == 0 {
				size = 4096
			}
			addQueue(sysfs, numbers[i], size, 0, inode)
			want[numbers[i]] = ring
			inode += uint64(1 + rand.IntN(1000))
		}
		addQueue(sysfs, numbers[5], 65536, 1, inode)
		f, err := s.Find(94314)
		if err != nil {
			t.Fatal(err)
		}
		wantRings(t, f, want, "")
		if t.Failed() {
			t.Fatalf("numbers %v", numbers)
		}
	}
}

func TestNoProof(t *testing.T) {
	all := map[int]uint64{0: 0, 1: 0, 2: 0, 3: 0, 4: 0}
	for name, c := range map[string]struct {
		change func(sysfs fstest.MapFS, s *Sources)
		want   map[int]uint64
		reason string
	}{
		"a queue less": {func(sysfs fstest.MapFS, _ *Sources) {
			for _, name := range []string{"", "/size", "/type", "/gpuid"} {
				delete(sysfs, "proc/94314/queues/4"+name)
			}
		}, map[int]uint64{0: 0, 1: 0, 2: 0, 3: 0}, "sysfs has 4 compute queues, debugfs 5"},
		"another size": {func(sysfs fstest.MapFS, _ *Sources) {
			sysfs["proc/94314/queues/3/size"] = file("8192")
		}, all, "their sizes differ"},
		"sizes contradict the order": {func(sysfs fstest.MapFS, _ *Sources) {
			addQueue(sysfs, 0, 4096, 0, 190)
		}, map[int]uint64{0: realRings[0], 1: 0, 2: 0, 3: 0, 4: 0}, "4 queues of 1048576 bytes"},
		"another process's dump": {func(_ fstest.MapFS, s *Sources) {
			s.Debug = fstest.MapFS{"mqds": file("Process 1 PASID 0x8001:\n  Compute queue on device f7bc\n")}
		}, all, "does not name the process"},
		"another chip": {func(_ fstest.MapFS, s *Sources) {
			s.Debug = fstest.MapFS{"mqds": file("Process 94314 PASID 0x8001:\n  Compute queue on device f7bc\n    00000000: c0310801 00000000 00000000 00000000 00000000 00000000 00000000 00000000\n")}
		}, all, "unknown format"},
		"a broken dump": {func(_ fstest.MapFS, s *Sources) {
			s.Debug = fstest.MapFS{"mqds": file("Process 94314\n")}
		}, all, "can't be read"},
	} {
		t.Run(name, func(t *testing.T) {
			s := realMachine(t)
			c.change(s.Sysfs.(fstest.MapFS), &s)
			f, err := s.Find(94314)
			if err != nil {
				t.Fatal(err)
			}
			wantRings(t, f, c.want, c.reason)
		})
	}
}

// changing replaces queue 4 by another with its number while the dump is read.
type changing struct {
	fs.FS
	sysfs fstest.MapFS
	times int
	inode uint64
}

func (c *changing) Open(name string) (fs.File, error) {
	if name == mqdsFile && c.times > 0 {
		c.times--
		c.inode++
		addQueue(c.sysfs, 4, 1<<20, 0, c.inode)
	}
	return c.FS.Open(name)
}

// TestReplacedWhileRead: a queue that is replaced between list and dump does not get its successor's
// ring. The list is read again.
func TestReplacedWhileRead(t *testing.T) {
	for times, reason := range map[int]string{readAttempts - 1: "", readAttempts: "while they were read"} {
		s := realMachine(t)
		s.Debug = &changing{FS: s.Debug, sysfs: s.Sysfs.(fstest.MapFS), times: times, inode: 200}
		f, err := s.Find(94314)
		if err != nil {
			t.Fatal(err)
		}
		want := map[int]uint64{}
		for i, ring := range realRings {
			if want[i] = ring; reason != "" {
				want[i] = 0
			}
		}
		wantRings(t, f, want, reason)
	}
}

// TestEqualRings: another process has a loaded queue with the same ring address.
func TestEqualRings(t *testing.T) {
	s := realMachine(t)
	text := string(unpack(t, "mi308x-hqds.txt.gz"))
	changed := strings.ReplaceAll(text, "017ba000", "0aaaa000") // the newest queue's descriptor in the first XCC
	for _, d := range []string{"017bd000", "017c0000", "017c3000"} {
		changed = strings.ReplaceAll(changed, d, "0bbbb000")
	}
	if changed == text {
		t.Fatal("the dump does not name the descriptor")
	}
	s.Debug.(fstest.MapFS)[hqdsFile] = file(changed)
	f, err := s.Find(94314)
	if err != nil {
		t.Fatal(err)
	}
	for _, q := range f.Queues[:5] {
		if want := q.ID != 4; *q.Loaded != want {
			t.Errorf("queue %d loaded: %v, want %v", q.ID, *q.Loaded, want)
		}
	}
}

// TestOrderedIsSysfs: inode numbers count only on the kernel's own file system.
func TestOrderedIsSysfs(t *testing.T) {
	var st unix.Statfs_t
	if err := unix.Statfs("/sys", &st); err != nil {
		t.Fatal(err)
	}
	root := t.TempDir()
	at := filepath.Join(root, SysfsRoot)
	if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/sys/kernel", at); err != nil {
		t.Fatal(err)
	}
	if got, want := SourcesAt(root).Ordered, st.Type == unix.SYSFS_MAGIC; got != want {
		t.Errorf("ordered %v, want %v", got, want)
	}
	_ = os.Remove(at)
	if err := os.Mkdir(at, 0o755); err != nil {
		t.Fatal(err)
	}
	if SourcesAt(root).Ordered {
		t.Error("a copy counts as the kernel's own")
	}
}

func TestJoinLog(t *testing.T) {
	s := realMachine(t)
	f, err := s.Find(94314)
	if err != nil {
		t.Fatal(err)
	}
	seven := uint64(7)
	logged := []LoggedQueue{{Ring: realRings[2], Kernels: &seven}, {Ring: realRings[1], Deleted: true}, {Ring: 0xdead, Bytes: 1 << 20}}
	f.JoinLog(logged)
	if f.Queues[2].Log == nil || *f.Queues[2].Log.Kernels != 7 || len(f.Queues) != 6 {
		t.Errorf("%+v", f.Queues)
	}
	if f.Queues[1].Log != nil {
		t.Error("a queue has the log of the deleted one that had its ring before")
	}
	if got := fmt.Sprint(f.Notes); !strings.Contains(got, "1 of its 3 queues were deleted") || !strings.Contains(got, "1 of its 3 queues match no ring of the process") {
		t.Error(got)
	}
	// Without root, the log's rings are all that is known.
	s.Debug = denied{}
	if f, err = s.Find(94314); err != nil {
		t.Fatal(err)
	}
	f.JoinLog(logged)
	if n := len(f.Queues); n != 8 || f.Queues[6].ID != -1 || f.Queues[6].Ring != realRings[2] || f.Queues[7].Ring != 0xdead {
		t.Errorf("%+v", f.Queues)
	}
}
