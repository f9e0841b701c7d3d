// SPDX-License-Identifier: Apache-2.0

package nvidia

import (
	"io"
	"log/slog"
	"os"
	"os/exec"
	"testing"
	"time"
)

// total counts the calls of the driver.
func (r *fakeRM) total() (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.calls {
		n += c
	}
	return n
}

// attachFake returns an attached process with one context whose handles end at firstHandle+103.
func attachFake(t *testing.T, pid int) (*fakeRM, *attached, int) {
	t.Helper()
	fake, w, fd := walkFake(t)
	fake.put(*fd, firstClient+3, firstHandle+100, fakeGPU)
	if err := w.from(t.Context(), firstClient+9); err != nil {
		t.Fatal(err)
	}
	if _, err := w.into.Resolve(t.Context()); err != nil {
		t.Fatal(err)
	}
	a := &attached{session: session{Objects: w.into, log: slog.New(slog.DiscardHandler)}, pid: pid, signs: newSigns(pid)}
	return fake, a, *fd
}

// later makes the next look due.
func (a *attached) later(d time.Duration) {
	a.signs.looked = a.signs.looked.Add(-d)
	a.signs.full = a.signs.full.Add(-d)
}

func (a *attached) mustRescan(t *testing.T) bool {
	t.Helper()
	found, err := a.rescan(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// TestIdleProcessIsNotSearched: a process that used no CPU time costs no call, however long.
func TestIdleProcessIsNotSearched(t *testing.T) {
	child := exec.Command("cat")
	in, err := child.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = in.Close()
		_ = child.Wait()
	}()
	fake, a, fd := attachFake(t, child.Process.Pid)
	for settled := 0; settled < 5; time.Sleep(5 * time.Millisecond) { // until it reads
		if next := newSigns(child.Process.Pid); next.cpu != a.signs.cpu {
			a.signs, settled = next, 0
		} else {
			settled++
		}
	}
	before := fake.total()
	for range 100 {
		a.later(time.Minute)
		if a.mustRescan(t) {
			t.Error("found something")
		}
	}
	if n := fake.total() - before; n != 0 {
		t.Errorf("%d calls for an idle process", n)
	}
	// It works, and has a new channel by then.
	fake.put(fd, firstClient+3, firstHandle+104, fakeGPU)
	if _, err := io.WriteString(in, "x"); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		if a.later(signPeriod); a.mustRescan(t) {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("a new channel was not found")
		}
	}
}

// TestSearchNeedsASign: a process that runs costs a few calls, a new channel is found at the next look,
// and so is one with a handle from between, by the full search.
func TestSearchNeedsASign(t *testing.T) {
	fake, a, fd := attachFake(t, os.Getpid())
	calls := func(f func()) int {
		before := fake.total()
		f()
		return fake.total() - before
	}
	quiet := calls(func() {
		a.later(signPeriod)
		if a.signs.files = fileCount(a.pid); a.mustRescan(t) {
			t.Error("found something")
		}
	})
	if quiet != frontier {
		t.Errorf("%d calls without a sign, want %d", quiet, frontier)
	}
	if n := calls(func() { a.mustRescan(t) }); n != 0 {
		t.Errorf("%d calls before the next look", n)
	}
	fake.put(fd, firstClient+3, firstHandle+103+frontier, fakeGPU) // the last handle of the frontier
	searched := calls(func() {
		a.later(signPeriod)
		a.signs.files = fileCount(a.pid)
		if !a.mustRescan(t) {
			t.Error("a new channel was not found")
		}
	})
	if searched > handleGap+4*frontier {
		t.Errorf("%d calls to find a channel above the known ones", searched)
	}
	a.Release()
	if n := len(a.units(fakeDevice)); n != 1 {
		t.Errorf("%d units", n)
	}
	// A reused handle below the others shows no sign.
	fake.put(fd, firstClient+3, firstHandle+50, fakeGPU)
	a.later(signPeriod)
	a.signs.files = fileCount(a.pid)
	if a.mustRescan(t) {
		t.Error("found without a full search")
	}
	a.later(fullPeriod)
	if !a.mustRescan(t) {
		t.Error("not found by the full search")
	}
	// A new file is a sign, too.
	fake.put(fd, firstClient+3, firstHandle+103+3*frontier, fakeGPU)
	f, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	a.later(signPeriod)
	if !a.mustRescan(t) {
		t.Error("not found after the process opened a file")
	}
}

// TestFullSearchesArePaced: full searches of many processes take a small part of the time.
func TestFullSearchesArePaced(t *testing.T) {
	var s searches
	at := time.Unix(1000, 0)
	if !s.begin(at) || s.begin(at) {
		t.Fatal("want one at a time")
	}
	s.end(at, at.Add(10*time.Millisecond))
	if s.begin(at.Add(400 * time.Millisecond)) {
		t.Error("another one within 400 ms of one that took 10 ms")
	}
	if !s.begin(at.Add(time.Second)) {
		t.Error("none after a second")
	}
}
