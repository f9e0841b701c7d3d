// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"fmt"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"xsched/internal/model"
)

var noon = time.Date(2026, 3, 2, 12, 0, 0, 0, time.UTC)

const second = model.Time(time.Second)

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

// everything selects all rows, and keeps their keys.
func everything(k Key) (Key, bool) { return k, true }

// total sums all rows of a ledger.
func total(l *Ledger, now time.Time) (sum Amounts) {
	for _, a := range l.Sum(now, 400*24*time.Hour, everything).Rows {
		sum.Add(a)
	}
	return sum
}

func use(gpu string, ran, waited time.Duration, requests, met, missed uint64) Use {
	return Use{GPUs: []GPUUse{{gpu, ran, waited}}, Requests: requests, Met: met, Missed: missed}
}

// A program's rows are the differences of its counters, also of those that began anew, and a program that has
// left is not accounted twice.
func TestDifferences(t *testing.T) {
	l := New(100*second, noon, quiet())
	key := Key{Owner: "1000", Program: "train.py"}
	at := func(s model.Time) (model.Time, time.Time) {
		return (100 + s) * second, noon.Add(time.Duration(s * second))
	}
	sample := func(s model.Time, u Use) {
		now, wall := at(s)
		l.Sample(now, wall, []string{"a", "b"}, []Program{{7, key, u}})
	}
	l.Joined(100*second, 7)
	sample(1, use("a", time.Second, 0, 10, 9, 1))
	sample(2, use("a", 3*time.Second/2, time.Second/2, 20, 18, 2))
	sample(3, use("a", 2*time.Second, time.Second, 5, 1, 0)) // another target
	now, _ := at(4)
	l.Left(now, Program{7, key, use("a", 5*time.Second/2, time.Second, 6, 1, 1)})
	sample(5, use("a", 2*time.Second, time.Second, 5, 1, 0)) // an older snapshot
	got := l.Sum(noon.Add(time.Minute), time.Hour, everything)
	want := Amounts{Ran: 25e8, Open: 4e9, Waited: 1e9, Requests: 26, Judged: 22, Met: 19}
	key.GPU = "a"
	if len(got.Rows) != 1 || got.Rows[key] != want || got.Watched != 5*time.Second || got.Capacity != 10*time.Second {
		t.Errorf("%+v, want %+v of 5 s", got, want)
	}
	// A page that claims more requests than time allows.
	l.Joined(now, 8)
	l.Left(now.Add(time.Second), Program{8, key, use("a", 0, 0, math.MaxUint64, math.MaxUint64, math.MaxUint64)})
	if n := total(l, noon.Add(time.Minute)).Requests; n > 2e7 {
		t.Errorf("%d requests in a second", n)
	}
}

// The capacity has the GPUs that drivers list, and others while they run something. Without a driver it has
// those that are open.
func TestCapacity(t *testing.T) {
	l, key := New(0, noon, quiet()), Key{Owner: "1000"}
	l.Joined(0, 1)
	l.Joined(0, 2)
	for s, c := range []struct {
		listed []string
		ran    time.Duration
		want   int64 // seconds in all
	}{{[]string{"a", "b"}, 0, 2}, {[]string{"a", "b"}, 1, 5}, {[]string{"a", "b"}, 1, 7}, {nil, 1, 8}} {
		now := model.Time(s+1) * second
		l.Sample(now, noon, c.listed, []Program{{1, key, use("c", c.ran, 0, 0, 0, 0)}})
		if got := l.hour.capacity; got != c.want*int64(second) {
			t.Errorf("sample %d: %d, want %d s", s, got, c.want)
		}
	}
	l.Left(4*second, Program{2, key, use("d", 1, 0, 0, 0, 0)}) // short, between two samples
	if l.Sample(5*second, noon, []string{"a"}, nil); l.hour.capacity != 10*int64(second) {
		t.Errorf("%d", l.hour.capacity)
	}
}

// A step of the wall clock moves rows to another hour, and changes no amount.
func TestClockSteps(t *testing.T) {
	l, key := New(0, noon, quiet()), Key{Owner: "1000", Program: "a"}
	l.Joined(0, 1)
	now, ran := model.Time(0), time.Duration(0)
	for i, wall := range []time.Time{noon, noon.Add(-time.Hour), noon.AddDate(10, 0, 0), noon, noon.AddDate(-56, 0, 0), noon.Add(time.Hour)} {
		for s := range 10 {
			now, ran = now.Add(time.Second), ran+time.Second/2
			l.Sample(now, wall.Add(time.Duration(s)*time.Second), []string{"a"}, []Program{{1, key, use("a", ran, 0, 0, 0, 0)}})
		}
		sum := Amounts{}
		for _, b := range append(l.past, l.hour) {
			for _, a := range b.rows {
				sum.Add(a)
			}
		}
		if sum.Ran != ran.Nanoseconds() || sum.Open != int64(now) {
			t.Errorf("step %d: %+v, want %v of %v", i, sum, ran, now)
		}
	}
	if got := l.Sum(noon.Add(2*time.Hour), 24*time.Hour, everything); got.Watched != 40*time.Second {
		t.Errorf("the last day has %v", got.Watched)
	}
}

// One user can't displace others, and nothing is lost: what has no row of its own is in one of "other".
func TestManyPrograms(t *testing.T) {
	b, sum := newBucket(noon.Unix(), hourLength), Amounts{}
	add := func(key Key) {
		a := Amounts{Ran: 3, Open: 5, Waited: 1, Requests: 2}
		b.add(key, a)
		sum.Add(a)
	}
	for user := range 20 {
		add(Key{Owner: fmt.Sprint(user), Program: "honest", GPU: "a"})
	}
	for n := range 5000 {
		add(Key{Owner: "666", Program: fmt.Sprint(n), GPU: "a"})
	}
	if n := len(b.rows); n > 20+maxRowsPerOwner+1 {
		t.Errorf("one user made %d rows", n-20)
	}
	for user := range 50 { // several, who have agreed on it
		for n := range 50 {
			add(Key{Owner: fmt.Sprint("x", user), Pod: "p", Program: fmt.Sprint(n), GPU: fmt.Sprint(n % 3)})
		}
	}
	for user := range 20 {
		if key := (Key{Owner: fmt.Sprint(user), Program: "honest", GPU: "a"}); b.rows[key].Ran != 3 {
			t.Errorf("user %d lost its row", user)
		}
	}
	for user := range 500 {
		add(Key{Owner: fmt.Sprint("many", user), Program: "a", GPU: "a"})
	}
	got := Amounts{}
	for _, a := range b.rows {
		got.Add(a)
	}
	if len(b.rows) > maxRows+1 || got != sum {
		t.Errorf("%d rows with %+v, want %+v", len(b.rows), got, sum)
	}
}

// Nor can users with many GPUs: each user has a row, and one with a program on one GPU keeps its name.
func TestManyGPUs(t *testing.T) {
	b, honest := newBucket(noon.Unix(), hourLength), Key{Owner: "1000", Program: "honest", GPU: "a"}
	for user := range 40 {
		for gpu := range maxGPUs + 1 {
			b.add(Key{Owner: fmt.Sprint("x", user), Program: "p", GPU: fmt.Sprint(gpu)}, Amounts{Ran: 1})
		}
		if user == 20 {
			b.add(honest, Amounts{Ran: 3})
		}
	}
	sums := map[string]int64{}
	for k, a := range b.rows {
		sums[k.Owner] += a.Ran
	}
	if len(sums) != 41 || sums["x39"] != maxGPUs+1 || b.rows[honest].Ran != 3 || len(b.rows) > maxRows {
		t.Errorf("%d rows, %v, %+v", len(b.rows), sums, b.rows[honest])
	}
}

// Names that a program chooses have a bounded length, and GPUs that it invents one name.
func TestInventedNames(t *testing.T) {
	l := New(0, noon, quiet())
	for i := range uint64(100) {
		l.Joined(0, i)
		long := strings.Repeat("ü\n", 100) + fmt.Sprint(i)
		l.Left(second, Program{i, Key{Owner: long, Pod: long, Program: long}, use(fmt.Sprint("gpu", i), 1, 0, 0, 0, 0)})
	}
	l.Sample(second, noon, []string{"real"}, nil)
	gpus := map[string]bool{}
	for k := range l.hour.rows {
		gpus[k.GPU] = true
		if !validText(k.Owner, k.Pod, k.Program, k.GPU) {
			t.Fatalf("%q", k)
		}
	}
	if len(gpus) > maxGPUs+1 || l.name("real") != "real" || len(l.hour.rows) < 90 {
		t.Errorf("%d GPUs, %d rows", len(gpus), len(l.hour.rows))
	}
}

// TestSumsArePreserved: whatever programs do, however the clock steps, and whenever the daemon restarts, the
// sum over all rows is what was added.
func TestSumsArePreserved(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		dir, err := os.MkdirTemp("", "ledger")
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = os.RemoveAll(dir) }()
		path, wall, now := filepath.Join(dir, "state.json"), noon, model.Time(0)
		open := func() *Ledger {
			l := Open(path, now, wall, quiet())
			l.write = func(path string, closed uint64, buckets []*bucket, _ bool) error {
				return write(path, closed, buckets, false)
			} // the disk is slow
			return l
		}
		l, want := open(), Amounts{}
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			session := rapid.Uint64Range(1, 5).Draw(t, "session")
			ran := time.Duration(rapid.IntRange(0, 1000).Draw(t, "ran"))
			key := Key{Owner: rapid.SampledFrom([]string{"1", "2"}).Draw(t, "owner"), Program: fmt.Sprint(rapid.IntRange(0, 40).Draw(t, "program"))}
			l.Joined(now, session)
			now = now.Add(time.Second)
			l.Left(now, Program{session, key, use(rapid.SampledFrom([]string{"a", "b"}).Draw(t, "gpu"), ran, ran/2, uint64(ran), uint64(ran), 0)})
			want.Add(Amounts{Ran: int64(ran), Open: 1e9, Waited: int64(ran / 2), Requests: int64(ran), Judged: int64(ran), Met: int64(ran)})
			wall = wall.Add(time.Duration(rapid.Int64Range(-3, 30*24).Draw(t, "hours")) * time.Hour / 4)
			l.Sample(now, wall, []string{"a", "b"}, nil)
			if rapid.Bool().Draw(t, "saved") {
				l.Save()
				if rapid.Bool().Draw(t, "killed") {
					l = open()
				}
			}
		}
		got := Amounts{}
		for _, b := range append(l.past, l.hour) {
			for _, a := range b.rows {
				got.Add(a)
			}
		}
		if got != want {
			t.Fatalf("%+v, want %+v", got, want)
		}
	})
}

// TestMonth measures a month of one host in virtual time: 20 users with 40 programs on eight GPUs, and
// several that take all other rows, with names of the characters that cost most. docs/operations.md states the bounds.
func TestMonth(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.json")
	gpus := make([]string, 8)
	for i := range gpus {
		gpus[i] = fmt.Sprintf("0000:%02x:00.0", i)
	}
	for name, hostile := range map[string]bool{"usual": false, "hostile": true} {
		l, now, wall, session := Open(path, 0, noon, quiet()), model.Time(0), noon, uint64(0)
		days := 30
		if hostile {
			days = HoursKept/24 + DaysKept
		}
		for left := time.Duration(days) * 24 * time.Hour; left > 0; {
			step := time.Hour // of the last week
			if left > HoursKept*time.Hour {
				step = 24 * time.Hour
			}
			left -= step
			now, wall = now.Add(step), wall.Add(step)
			l.Sample(now, wall, gpus, nil)
			pod := ""
			add := func(owner, program string) {
				session++
				l.Joined(now.Add(-step), session)
				l.Left(now, Program{session, Key{owner, pod, program, ""}, use(gpus[session%8], step/10, step/100, 123456, 123400, 56)})
			}
			for i := range 40 {
				add(fmt.Sprint(1000+i/2), fmt.Sprintf("train-%d.py", i))
			}
			for i := 0; hostile && i < maxRows-40; i++ {
				pod = strings.Repeat("p", maxText)
				add(fmt.Sprintf("container docker-%d#%040d", i/11, i/11), strings.Repeat("<\"", 30)+fmt.Sprint(i))
			}
		}
		began := time.Now()
		l.Save()
		saved := time.Since(began)
		began = time.Now()
		l = Open(path, now, wall, quiet())
		opened := time.Since(began)
		began = time.Now()
		sum := l.Sum(wall, 30*24*time.Hour, func(k Key) (Key, bool) { return Key{Owner: k.Owner}, true })
		answered := time.Since(began)
		past, err := os.Stat(PastFile(path))
		if err != nil {
			t.Fatal(err)
		}
		hour, err := os.Stat(HourFile(path))
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%s: %d hours and days, %d kB of the past, %d kB of the hour; saved in %v, read in %v, summed in %v", name, len(l.past), past.Size()>>10, hour.Size()>>10, saved, opened, answered)
		if most := int64(12 << 20); past.Size() > most || !hostile && past.Size() > 2<<20 || hour.Size() > 64<<10 {
			t.Errorf("%s: %d and %d bytes", name, past.Size(), hour.Size())
		}
		if a := sum.Rows[Key{Owner: "1000"}]; len(l.past) > HoursKept+DaysKept+1 || a.Ran < int64(30*24*720*time.Second) || sum.Watched < 30*24*time.Hour {
			t.Errorf("%s: %d buckets, user 1000 has %+v of %v", name, len(l.past), a, sum.Watched)
		}
		_, _ = os.Remove(PastFile(path)), os.Remove(HourFile(path))
	}
}
