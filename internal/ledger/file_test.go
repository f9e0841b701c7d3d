// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"xsched/internal/health"
	"xsched/internal/model"
)

// busy returns a ledger with a program that ran for three seconds in each of two hours.
func busy(t *testing.T, path string) (*Ledger, model.Time, time.Time) {
	t.Helper()
	l, key := Open(path, 0, noon, quiet()), Key{Owner: "1000", Program: "a"}
	l.Joined(0, 1)
	l.Sample(3*second, noon, []string{"a"}, []Program{{1, key, use("a", 3*time.Second, 0, 0, 0, 0)}})
	wall := noon.Add(time.Hour)
	l.Sample(6*second, wall, []string{"a"}, []Program{{1, key, use("a", 6*time.Second, 0, 0, 0, 0)}})
	return l, 6 * second, wall
}

// TestRestart: a daemon that is killed at any moment loses nothing that was saved, and counts nothing twice.
func TestRestart(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.json")
	l, now, wall := busy(t, path)
	l.Save()
	hour, err := os.ReadFile(HourFile(path))
	if err != nil {
		t.Fatal(err)
	}
	l.Sample(now, wall.Add(time.Hour), nil, nil)
	l.Save()
	if got := total(Open(path, now, wall, quiet()), wall.Add(time.Hour)); got.Ran != 6e9 {
		t.Errorf("%+v", got)
	}
	// Killed between the two writes: the file of the past has the hour already.
	if err := os.WriteFile(HourFile(path), hour, 0o600); err != nil {
		t.Fatal(err)
	}
	if l = Open(path, now, wall, quiet()); total(l, wall.Add(time.Hour)).Ran != 6e9 {
		t.Errorf("%+v", total(l, wall.Add(time.Hour)))
	}
}

// TestDamagedFile: a file that can't be used is set aside, and the other one counts.
func TestDamagedFile(t *testing.T) {
	for _, damaged := range []func(string) string{PastFile, HourFile} {
		path := filepath.Join(t.TempDir(), "state.json")
		l, now, wall := busy(t, path)
		l.Save()
		if err := os.WriteFile(damaged(path), []byte(`{"version":1,"closed":`), 0o600); err != nil {
			t.Fatal(err)
		}
		var log bytes.Buffer
		l = Open(path, now, wall, slog.New(slog.NewTextHandler(&log, nil)))
		if got := total(l, wall); got.Ran != 3e9 || strings.Count(log.String(), "\n") != 1 || !strings.Contains(log.String(), ".bad") {
			t.Errorf("%+v, %s", got, &log)
		}
		l.Joined(now, 1)
		l.Left(now+second, Program{1, Key{Owner: "1000"}, use("a", time.Second, 0, 0, 0, 0)})
		l.Sample(now+2*second, wall.Add(time.Hour), nil, nil)
		l.Save()
		if got := total(Open(path, now, wall, quiet()), wall.Add(time.Hour)); got.Ran != 4e9 {
			t.Errorf("after the next write: %+v", got)
		}
	}
}

// TestFullDisk: a write that fails is logged once and repeated. Nothing is lost.
func TestFullDisk(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	path := filepath.Join(dir, "state.json")
	if err := os.WriteFile(dir, nil, 0o600); err != nil { // not a folder
		t.Fatal(err)
	}
	var log bytes.Buffer
	l, now, wall := busy(t, "")
	l.path, l.log = path, slog.New(slog.NewTextHandler(&log, nil))
	for range 3 {
		l.Save()
	}
	if n := strings.Count(log.String(), "\n"); n != 1 || total(l, wall).Ran != 6e9 {
		t.Errorf("%d lines: %s", n, &log)
	}
	if err := os.Remove(dir); err != nil {
		t.Fatal(err)
	}
	l.Save()
	if got := total(Open(path, now, wall, quiet()), wall); got.Ran != 6e9 {
		t.Errorf("with room: %+v", got)
	}
}

// TestHangingDisk: a write that does not return is named, and neither samples nor reports wait for it.
func TestHangingDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, now, wall := busy(t, "")
		l.path = "state.json"
		free := make(chan struct{})
		l.write = func(string, uint64, []*bucket, bool) error { <-free; return nil }
		ctx, cancel := context.WithCancel(t.Context())
		m := &health.Monitor{}
		part := m.Add("usage file", time.Minute, false)
		ended := make(chan struct{})
		go func() { defer close(ended); l.Run(ctx, part) }()
		late := func() bool { all := m.States(); return all[0].Late() }
		for s := range 61 {
			time.Sleep(time.Second)
			l.Sample(now.Add(time.Duration(s)*time.Second), wall, []string{"a"}, nil)
		}
		if time.Sleep(5 * time.Second); !late() || total(l, wall).Ran != 6e9 {
			t.Errorf("a hanging disk: %+v", m.States())
		}
		close(free)
		if time.Sleep(time.Second); late() {
			t.Errorf("afterwards: %+v", m.States())
		}
		cancel()
		<-ended
	})
}

// FuzzParse checks that what is accepted is within the bounds, and has the form that Save writes.
func FuzzParse(f *testing.F) {
	f.Add([]byte(`{"version":1,"closed":3,"buckets":[{"start":1772452800,"length":3600,"watched":6,"capacity":12,"rows":[{"owner":"1000","program":"a","gpu":"0000:01:00.0","ran":3,"open":4,"waited":1,"requests":2,"judged":2,"met":1}]}]}`))
	f.Add([]byte(`{"version":1,"buckets":[{"start":0,"length":86400},{"start":86400,"length":3600}]}`))
	f.Add([]byte(`{"version":1}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		c, err := parse(text)
		if err != nil {
			return
		}
		path := filepath.Join(t.TempDir(), "usage.json")
		if err := write(path, c.closed, c.buckets, false); err != nil {
			t.Fatal(err)
		}
		again, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		d, err := parse(again)
		if err != nil || d.closed != c.closed || len(d.buckets) != len(c.buckets) {
			t.Fatalf("%v: %s", err, again)
		}
		l := New(0, noon, quiet())
		l.past = compact(c.buckets, noon.Unix())
		for _, a := range l.Sum(noon, 400*24*time.Hour, everything).Rows {
			if !valid(a.Ran, a.Open, a.Waited, a.Requests, a.Judged, a.Met) {
				t.Fatalf("%+v", a)
			}
		}
	})
}
