// SPDX-License-Identifier: Apache-2.0

package daemon_test

import (
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"xsched/internal/control"
)

// TestHolds runs tenants of two namespaces in pods' cgroups. A hold is for one of them, ends by itself
// and with the daemon, and is not for tenants to ask for.
func TestHolds(t *testing.T) {
	dir := sharedDir(t)
	d := startGrants(t, dir)
	const namespaces = syscall.CLONE_NEWPID | syscall.CLONE_NEWNS | syscall.CLONE_NEWCGROUP | syscall.CLONE_NEWIPC
	clients := filepath.Join(dir, "d", control.ClientDir)
	a := startIn(t, clients, 0, namespaces, podSlice(podA), "cri-containerd-"+idA+".scope")
	b := startIn(t, clients, 0, namespaces, podSlice(podB), "cri-containerd-"+idB+".scope")
	a.want("ok 1", "join")
	b.want("ok 1", "join")
	d.set(t, "dra",
		control.Grant{ID: "a", Namespace: "ml", Pod: "train-0", PodUID: podA, Priority: new(int32(-10)), Group: "job"},
		control.Grant{ID: "b", Namespace: "web", Pod: "train-0", PodUID: podB, Priority: new(int32(-10)), Group: "job"})
	hold := func(from, until time.Duration) {
		t.Helper()
		now := time.Now()
		h := control.Hold{Namespace: "ml", Group: "job", FromNS: now.Add(from).UnixNano(), UntilNS: now.Add(until).UnixNano()}
		if _, err := d.ctl.SetHolds(ctx, control.HoldsRequest{Source: "gang", Holds: []control.Hold{h}}); err != nil {
			t.Fatal(err)
		}
	}
	held := func(want bool) {
		t.Helper()
		for began := time.Now(); d.process(t, a.pid).GroupHeld != want; time.Sleep(5 * time.Millisecond) {
			if time.Since(began) > 20*time.Second {
				t.Fatalf("never held=%v: %+v", want, d.process(t, a.pid))
			}
		}
		if p := d.process(t, b.pid); p.GroupHeld || p.Group != "job" {
			t.Errorf("a group of the same name in another namespace: %+v", p)
		}
	}
	hold(-time.Second, 20*time.Second)
	held(true)
	if p := d.process(t, a.pid); p.Held || p.State != control.StateHeld || p.Group != "job" || p.GroupPriority != -10 {
		t.Errorf("%+v", p)
	}
	a.want("was not suspended by hand", "resume %d", control.Self)
	held(true)
	if r, err := d.ctl.Holds(ctx); err != nil || len(r.Holds) != 1 || !r.Holds[0].Held || r.Holds[0].Source != "gang" {
		t.Errorf("%+v, %v", r, err)
	}
	hold(0, 200*time.Millisecond) // and nobody ends it
	held(false)
	if r, err := d.ctl.Holds(ctx); err != nil || len(r.Holds) != 0 {
		t.Errorf("%+v, %v", r, err)
	}
	now := time.Now()
	for _, bad := range []control.HoldsRequest{
		{Source: "Gang"},
		{Source: "gang", Holds: make([]control.Hold, control.MaxHolds+1)},
		{Source: "gang", Holds: []control.Hold{{Namespace: "ml", Group: "", UntilNS: now.UnixNano()}}},
		{Source: "gang", Holds: []control.Hold{{Namespace: "m/l", Group: "job", UntilNS: now.UnixNano()}}},
		{Source: "gang", Holds: []control.Hold{{Namespace: "ml", Group: "job", UntilNS: now.Add(time.Hour).UnixNano()}}},
		{Source: "gang", Holds: []control.Hold{{Namespace: "ml", Group: "job", FromNS: 2, UntilNS: 1}}},
	} {
		_, err := d.ctl.SetHolds(ctx, bad)
		wantError(t, err, control.ErrInvalid)
	}
	inside := control.Caller{User: control.Nobody.User}
	inside.User.UID, inside.User.Container = 0, "/docker/x"
	_, err := d.Holds(ctx, inside, control.HoldsRequest{Source: "gang"})
	wantError(t, err, control.ErrNotAllowed)

	hold(0, 20*time.Second)
	held(true)
	d.stop()
	d = startGrants(t, dir)
	a = startIn(t, clients, 0, namespaces, podSlice(podA), "cri-containerd-"+idA+".scope")
	a.want("ok 1", "join")
	if p := d.process(t, a.pid); p.GroupHeld || p.Group != "job" {
		t.Errorf("a new daemon holds %+v", p)
	}
}
