// SPDX-License-Identifier: Apache-2.0

package keeper

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"xsched/internal/identity"
	"xsched/internal/loop"
	"xsched/internal/model"
	"xsched/internal/state"
)

// A user who sets hints for any number of processes leaves room for the operator's settings.
func TestKeeperBoundsUsers(t *testing.T) {
	k := Open("", slog.New(slog.DiscardHandler))
	hold := func(pid, uid int, operator bool) bool {
		who := loop.Identity{PID: pid, User: identity.OnHost(uid), Program: &identity.Program{Start: 1}}
		k.Keep(who, loop.Kept{Held: true}, false, operator)
		return k.Kept(who).Held
	}
	for pid := range maxKept {
		hold(1+pid, 1000, false)
	}
	if n := len(k.processes); n != maxKeptPerUser {
		t.Errorf("%d processes of one user", n)
	}
	if !hold(1+maxKept, 1000, true) || !hold(2+maxKept, 1001, false) {
		t.Error("no room for the operator or for another user")
	}
}

// Without a file, too, the keeper forgets processes that have ended.
func TestKeeperForgetsTheEnded(t *testing.T) {
	k := Open("", slog.New(slog.DiscardHandler))
	start, err := identity.Started(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	k.Keep(loop.Identity{PID: os.Getpid(), Program: &identity.Program{Start: start}}, loop.Kept{Held: true}, false, true)
	k.Keep(loop.Identity{PID: 1 << 30, Program: &identity.Program{Start: 1}}, loop.Kept{Held: true}, false, true)
	k.Save()
	if _, ok := k.processes[os.Getpid()]; !ok || len(k.processes) != 1 {
		t.Errorf("%+v", k.processes)
	}
}

// A program that root has resumed is not suspended again by the next daemon, although the disk was full. One
// that is still suspended stays in the file.
func TestKeeperForgetsResumedProgramsOnAFullDisk(t *testing.T) {
	start, err := identity.Started(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	who := loop.Identity{PID: os.Getpid(), Program: &identity.Program{Start: start}}
	path := filepath.Join(t.TempDir(), "state.json")
	full := false
	open := func() *Keeper {
		k := Open(path, slog.New(slog.DiscardHandler))
		k.write = func(d state.Data) error {
			if full {
				return unix.ENOSPC
			}
			return state.Save(path, d)
		}
		return k
	}
	k := open()
	k.Keep(who, loop.Kept{Held: true}, false, true)
	k.Save()
	full = true
	k.Set("policy", "FIFO", "default HPF")
	k.Save()
	if k = open(); !k.Kept(who).Held {
		t.Error("a suspended program is forgotten")
	}
	k.Keep(who, loop.Kept{}, false, true)
	k.Save()
	if open().Kept(who).Held {
		t.Error("a resumed program will be suspended again")
	}
}

// Settings that a full or unwritable disk refused are written once it takes them, without another change.
func TestKeeperRepeatsAFailedWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		obstacle := filepath.Join(t.TempDir(), "state")
		if err := os.WriteFile(obstacle, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(obstacle, "state.json")
		k := Open(file, slog.New(slog.DiscardHandler))
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		go k.Run(ctx, nil)
		start, err := identity.Started(os.Getpid())
		if err != nil {
			t.Fatal(err)
		}
		k.Keep(loop.Identity{PID: os.Getpid(), Program: &identity.Program{Start: start}}, loop.Kept{Held: true}, false, true)
		k.Flush(ctx)
		if !k.hasFailed() {
			t.Fatal("the write did not fail")
		}
		if err := os.Remove(obstacle); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * saveAgain)
		if _, err := os.Stat(file); err != nil {
			t.Error(err)
		}
	})
}

// A user who changes hints without end makes the disk work for a twentieth of the time. An operator does
// not wait for the pause.
func TestSavesOfUsersArePaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const cost, during = 15 * time.Millisecond, 10 * time.Second
		k := Open(filepath.Join(t.TempDir(), "state.json"), slog.New(slog.DiscardHandler))
		writes := 0
		k.write = func(state.Data) error { writes++; time.Sleep(cost); return nil }
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go k.Run(ctx, nil)
		start, err := identity.Started(os.Getpid())
		if err != nil {
			t.Fatal(err)
		}
		set := func(n int, operator bool) {
			who := loop.Identity{PID: os.Getpid(), User: identity.OnHost(1000), Program: &identity.Program{Start: start}}
			k.Keep(who, loop.Kept{Granted: model.Priority(1 + n%50)}, false, operator)
		}
		for n := range int(during / time.Millisecond) {
			set(n, false)
			if n%1000 == 999 {
				began := time.Now()
				set(100+n, true)
				if k.Flush(ctx); time.Since(began) > 2*cost+savePause {
					t.Errorf("an operator waited %v", time.Since(began))
				}
			}
			time.Sleep(time.Millisecond)
		}
		// Those that operators asked for come in addition.
		if most := int(during/(saveShare*cost)) + 2*10 + 1; writes > most {
			t.Errorf("%d writes in %v, want at most %d", writes, during, most)
		}
	})
}

// TestKeepLatest: of two requests for a program at the same time the later reading stays, whichever ends
// last, and one that waits delays no other.
func TestKeepLatest(t *testing.T) {
	start, err := identity.Started(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	who := loop.Identity{PID: os.Getpid(), Program: &identity.Program{Start: start}}
	k := Open("", slog.New(slog.DiscardHandler))
	request := func(held bool, reading uint64, before <-chan struct{}) {
		k.KeepLatest(who.PID, true, func() (loop.Identity, loop.Kept, error) {
			if before != nil {
				<-before
			}
			return who, loop.Kept{Held: held, Reading: reading}, nil
		})
	}
	older, done := make(chan struct{}), make(chan struct{})
	go func() {
		request(true, 1, older)
		close(done)
	}()
	for begun := false; !begun; {
		k.mu.Lock()
		begun = len(k.latest) == 1
		k.mu.Unlock()
	}
	request(false, 2, nil) // root resumes meanwhile
	close(older)
	<-done
	if k.Kept(who).Held {
		t.Error("the older reading replaced the later one")
	}
	if request(true, 3, nil); !k.Kept(who).Held {
		t.Error("a new request is not kept")
	}
	if len(k.latest) != 0 {
		t.Errorf("%d programs are remembered without a request", len(k.latest))
	}
}
