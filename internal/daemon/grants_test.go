// SPDX-License-Identifier: Apache-2.0

package daemon_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"xsched/internal/api"
	"xsched/internal/control"
	"xsched/internal/control/client"
	"xsched/internal/daemon"
	"xsched/internal/identity"
	"xsched/internal/model"
	"xsched/internal/session/sessiontest"
)

const (
	podA = "3fd4bb8e-2a0c-4b47-9d0e-5e7a1c3f9b21"
	podB = "7c1e0f52-93ab-4cde-8f01-23456789abcd"
)

var idA, idB = strings.Repeat("a", 64), strings.Repeat("b", 64)

func podSlice(uid string) string {
	return "kubepods-besteffort-pod" + strings.ReplaceAll(uid, "-", "_") + ".slice"
}

// grantsDaemon is a daemon of root with both control sockets.
type grantsDaemon struct {
	*daemon.Daemon
	ctl  *client.Client
	stop func()
}

func startGrants(t *testing.T, dir string) *grantsDaemon {
	t.Helper()
	d, err := daemon.Start(daemon.Options{
		Dir: filepath.Join(dir, "d"), Virtual: true, VGPUSocket: filepath.Join(dir, "none"), Version: "test", KeepFile: filepath.Join(dir, "state.json"),
	})
	if err != nil {
		t.Fatal(err)
	}
	serving, cancel := context.WithCancel(t.Context())
	stop := func() { cancel(); d.Close() }
	t.Cleanup(stop)
	tenants, err := d.ListenTenants()
	if err != nil {
		t.Fatal(err)
	}
	host, err := d.ListenControl()
	if err != nil {
		t.Fatal(err)
	}
	quiet := slog.New(slog.DiscardHandler)
	go func() { _ = api.Serve(serving, tenants, d.Control(), api.Options{Log: quiet}) }()
	go func() { _ = api.Serve(serving, host, d.Control(), api.Options{Log: quiet}) }()
	return &grantsDaemon{d, client.New(filepath.Join(dir, "d", control.ControlSocket)), stop}
}

func (d *grantsDaemon) set(t *testing.T, source string, all ...control.Grant) control.GrantsReply {
	t.Helper()
	r, err := d.ctl.SetGrants(ctx, control.GrantsRequest{Source: source, Grants: all})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// process returns a program of the list.
func (d *grantsDaemon) process(t *testing.T, pid int) control.Process {
	t.Helper()
	l, err := d.ctl.List(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range l.Processes {
		if p.PID == pid {
			return p
		}
	}
	t.Fatalf("process %d is not in %+v", pid, l)
	return control.Process{}
}

// meddler is a context that runs f when it is asked for its deadline for the given time: between two steps
// of a request.
type meddler struct {
	context.Context
	call int
	f    func()
}

func (m *meddler) Deadline() (time.Time, bool) {
	if m.call--; m.call == -1 {
		m.f()
	}
	return m.Context.Deadline()
}

// TestGrants runs tenants in real pods' cgroups. A grant binds programs that run before it and after it,
// changes and ends with it, survives a restart, and no tenant changes or reads it.
func TestGrants(t *testing.T) {
	dir := sharedDir(t)
	d := startGrants(t, dir)
	clients := filepath.Join(dir, "d", control.ClientDir)
	const namespaces = syscall.CLONE_NEWPID | syscall.CLONE_NEWNS | syscall.CLONE_NEWCGROUP | syscall.CLONE_NEWIPC
	a := startIn(t, clients, 0, namespaces, podSlice(podA), "cri-containerd-"+idA+".scope")
	b := startIn(t, clients, 0, namespaces, podSlice(podB), "cri-containerd-"+idB+".scope")
	a.want("ok 1", "join")
	b.want("ok 1", "join")
	a.want("the limit of uid 0", "raise %d", control.Self)

	latency := control.Grant{ID: "claim-1", Namespace: "ml", Pod: "serve-0", PodUID: podA, Class: "gpu-latency", Priority: new(int32(10)), Utilization: new(40), Memory: new(int64(40 << 30))}
	r := d.set(t, "dra", latency)
	if r.Added != 1 || len(r.Grants) != 1 || len(r.Grants[0].PIDs) != 1 || r.Grants[0].PIDs[0] != a.pid {
		t.Errorf("%+v", r)
	}
	if r = d.set(t, "dra", latency); r.Added+r.Changed+r.Removed != 0 {
		t.Errorf("the same again: %+v", r)
	}
	if p := d.process(t, a.pid); p.Priority != 10 || p.Utilization != 40 || p.Namespace != "ml" || p.Pod != "serve-0" || p.PodContainer != "" || p.Class != "gpu-latency" || p.Hints.Memory != 40<<30 {
		t.Errorf("after the grant: %+v", p)
	}
	if p := d.process(t, b.pid); p.Priority != 0 || p.Pod != "" || p.Hints.Memory != 0 {
		t.Errorf("the other pod: %+v", p)
	}
	t.Run("a tenant lowers itself and returns", func(t *testing.T) {
		a.want("ok", "hint %d", control.Self)  // -3
		a.want("ok", "raise %d", control.Self) // 5
		if p := d.process(t, a.pid); p.Priority != 5 {
			t.Errorf("%+v", p)
		}
		d.set(t, "dra", control.Grant{ID: "claim-1", Namespace: "ml", Pod: "serve-0", PodUID: podA, Priority: new(int32(4))})
		if p := d.process(t, a.pid); p.Priority != 4 || p.Utilization != 0 {
			t.Errorf("after a lower grant: %+v", p)
		}
		a.want("the grant of pod ml/serve-0 limits this hint of process 1 (priority=4)", "raise %d", control.Self)
	})
	t.Run("a grant that ends beside a hint", func(t *testing.T) {
		tenant := control.Caller{PID: a.pid, User: identity.User{Container: d.process(t, a.pid).Container}}
		raise := control.HintRequest{PID: a.pid, Priority: new(int32(9)), Utilization: new(50)}
		if _, err := d.Hint(ctx, tenant, raise); err == nil {
			t.Fatal("the limit of the user permits it: the test shows nothing")
		}
		for call := range 6 {
			d.set(t, "dra", latency)
			r := raise
			r.Utilization = nil
			_, err := d.Hint(&meddler{Context: ctx, call: call, f: func() { d.set(t, "dra") }}, tenant, r)
			d.set(t, "dra")
			if p := d.process(t, a.pid); p.Priority > 0 {
				t.Errorf("the grant ended at call %d (%v): priority %d stays", call, err, p.Priority)
			}
		}
	})
	t.Run("names", func(t *testing.T) {
		d.set(t, "dra", control.Grant{ID: "claim-1", Namespace: "ml", Pod: "serve-0", PodUID: podA, Priority: new(int32(4))})
		d.set(t, "nri",
			control.Grant{ID: "c1", Namespace: "ml", Pod: "serve-0", PodUID: podA, Container: "main", ContainerID: idA},
			control.Grant{ID: "c2", Namespace: "web", Pod: "b", PodUID: podB, Container: "side", ContainerID: idB, Class: "batch", Priority: new(int32(-7))})
		if p := d.process(t, a.pid); p.PodContainer != "main" || p.Priority != 4 {
			t.Errorf("a name alone changes hints: %+v", p)
		}
		if p := d.process(t, b.pid); p.Priority != -7 || p.Class != "batch" {
			t.Errorf("%+v", p)
		}
		if got := a.ask("pods"); got != "ok ml/serve-0/main ;" {
			t.Errorf("the first pod sees %s", got)
		}
		if got := b.ask("pods"); got != "ok web/b/side batch;" {
			t.Errorf("the second pod sees %s", got)
		}
		b.want("ok suspended process 1", "suspend %d", control.Self)
		b.want("suspended web/b/side;", "journal")
	})
	t.Run("containers", func(t *testing.T) {
		for _, c := range []*container{a, b} {
			c.want("refused: /api/v1/grants/dra is not available in a container", "grants")
			c.want("refused: only root and the daemon's user", "read-grants")
			if got := c.ask("journal"); strings.Contains(got, "grants") || c == a && strings.Contains(got, "web") || c == b && strings.Contains(got, "ml") {
				t.Errorf("a container reads %s", got)
			}
		}
		inside := control.Caller{User: control.Nobody.User}
		inside.User.UID, inside.User.Container = 0, "/docker/x"
		_, err := d.Grants(ctx, inside, control.GrantsRequest{Source: "dra"})
		wantError(t, err, control.ErrNotAllowed)
		if got := texts(t, d.Control(), control.Caller{}, -1, control.JournalChange); !strings.Contains(got, "root changed the grants of dra to 1 added") ||
			!strings.Contains(got, "1 added, 0 changed, 0 removed: +ml/serve-0 (gpu-latency priority=10 utilization=40 memory=40GiB)") ||
			!strings.Contains(got, "ml/serve-0 (gpu-latency priority=10 utilization=40 memory=40GiB to priority=4)") {
			t.Errorf("journal: %s", got)
		}
	})
	t.Run("journal", func(t *testing.T) {
		if got := texts(t, d.Control(), control.Caller{User: identity.OnHost(1000)}, -1, control.JournalChange); strings.Contains(got, "grants") {
			t.Errorf("another user reads the grants: %s", got)
		}
		// What was applied is in the journal, also if the reply fails.
		for call := range 4 {
			named := control.Grant{ID: "x", Namespace: "n", Pod: "reply" + strings.Repeat("x", call), PodUID: podB}
			stopped, stop := context.WithCancel(ctx)
			_, err := d.Control().Grants(&meddler{Context: stopped, call: call, f: stop}, control.Caller{}, control.GrantsRequest{Source: "reply", Grants: []control.Grant{named}})
			stop()
			r, listed := d.ctl.Grants(ctx)
			if listed != nil {
				t.Fatal(listed)
			}
			applied := slices.ContainsFunc(r.Grants, func(g control.GrantEntry) bool { return g.Pod == named.Pod })
			if entered := strings.Contains(texts(t, d.Control(), control.Caller{}, -1, control.JournalChange), named.Pod+" "); entered != applied {
				t.Errorf("stopped at call %d (%v): applied %v, in the journal %v", call, err, applied, entered)
			}
		}
		d.set(t, "reply")
	})
	t.Run("one bad grant", func(t *testing.T) {
		for cause, bad := range map[string]control.Grant{
			"not a pod UID":      {ID: "x", Namespace: "n", Pod: "p", PodUID: "1"},
			"is out of range":    {ID: "x", Namespace: "n", Pod: "p", PodUID: podA, Priority: new(int32(300))},
			"not a namespace":    {ID: "x", Namespace: "N\x1b", Pod: "p", PodUID: podA},
			"not the id":         {Namespace: "n", Pod: "p", PodUID: podA},
			"have the id":        {ID: "claim-1", Namespace: "n", Pod: "p", PodUID: podA},
			"has no id":          {ID: "x", Namespace: "n", Pod: "p", PodUID: podA, Container: "main"},
			"not a container id": {ID: "x", Namespace: "n", Pod: "p", PodUID: podA, ContainerID: "abc"},
		} {
			_, err := d.ctl.SetGrants(ctx, control.GrantsRequest{Source: "dra", Grants: []control.Grant{latency, bad}})
			if !errors.Is(err, control.ErrInvalid) || !strings.Contains(err.Error(), cause) {
				t.Errorf("%s: %v", cause, err)
			}
		}
		if p := d.process(t, a.pid); p.Priority != 4 {
			t.Errorf("a refused request changed %+v", p)
		}
	})
	t.Run("bounds", func(t *testing.T) {
		many := make([]control.Grant, control.MaxGrants)
		for i := range many {
			many[i] = control.Grant{ID: fmt.Sprint(i), Namespace: "n", Pod: "p", PodUID: podA}
		}
		_, err := d.ctl.SetGrants(ctx, control.GrantsRequest{Source: "other", Grants: many})
		if !errors.Is(err, control.ErrInvalid) || !strings.Contains(err.Error(), "too many") {
			t.Errorf("%v", err)
		}
		_, err = d.ctl.SetGrants(ctx, control.GrantsRequest{Source: "No", Grants: nil})
		wantError(t, err, control.ErrInvalid)
	})
	t.Run("restart", func(t *testing.T) {
		before, err := d.ctl.Grants(ctx)
		if err != nil || len(before.Grants) != 3 {
			t.Fatalf("%+v, %v", before, err)
		}
		d.stop()
		d = startGrants(t, dir)
		late := startIn(t, clients, 0, namespaces, podSlice(podB), "cri-containerd-"+idB+".scope")
		late.want("ok 1", "join") // with nothing set again
		if p := d.process(t, late.pid); p.Priority != -7 || p.PodContainer != "side" {
			t.Errorf("%+v", p)
		}
		if r := d.set(t, "nri"); r.Removed != 2 {
			t.Errorf("%+v", r)
		}
		if p := d.process(t, late.pid); p.Priority != 0 || p.Pod != "" {
			t.Errorf("after the grant: %+v", p)
		}
	})
}

// TestUngrantedGPUs: two pods have a GPU each, and one of them also uses the GPU of the other. It is best effort
// there, with and without the shim, and each case is in the journal once. The other pod keeps what it was granted.
func TestUngrantedGPUs(t *testing.T) {
	dir := sharedDir(t)
	d := startGrants(t, dir)
	clients := filepath.Join(dir, "d", control.ClientDir)
	start := func(uid, id string) *container {
		return startIn(t, clients, 0, syscall.CLONE_NEWNS, podSlice(uid), "cri-containerd-"+id+".scope")
	}
	a, b, late, bare := start(podA, idA), start(podB, idB), start(podB, idB), start(podB, idB)
	first, second := sessiontest.GPU.String(), model.MakeDeviceID(0, 2, 0, 0).String()
	grant := func(pod, uid, class string, priority int32, gpus ...string) control.Grant {
		return control.Grant{ID: pod, Namespace: "ml", Pod: pod, PodUID: uid, Class: class, Priority: &priority, Utilization: new(40), Devices: gpus}
	}
	owner := grant("owner", podA, "gpu-batch", -10, first)
	d.set(t, "dra", owner, grant("guest", podB, "gpu-latency", 10, second))
	bare.want("ok", "map")
	a.want("ok", "join")
	b.want("ok", "join 2")
	// hints returns priority and share of a program on a GPU.
	hints := func(c *container, gpu string) string {
		for _, q := range d.process(t, c.pid).Queues {
			if q.Device == gpu {
				return fmt.Sprint(q.Hints.Priority, " ", q.Hints.Utilization)
			}
		}
		return "no queue"
	}
	await(t, "the queues", func() bool { return hints(a, first) != "no queue" && hints(b, second) != "no queue" })
	for what, c := range map[string]struct{ got, want string }{
		"the owner": {hints(a, first), "-10 40"}, "the guest on its own": {hints(b, second), "10 40"}, "the guest on the other": {hints(b, first), fmt.Sprint(model.PriorityMin, " 0")},
	} {
		if c.got != c.want {
			t.Errorf("%s: priority and share %s, want %s", what, c.got, c.want)
		}
	}
	faults := func() (out []string) {
		j, err := d.ctl.Journal(ctx, control.JournalRequest{Max: control.JournalMax})
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range j.Entries {
			if e.Kind == control.JournalFault {
				out = append(out, fmt.Sprintf("%d %s %s %s", e.PID, e.Pod, e.Device, e.Detail))
			}
		}
		slices.Sort(out)
		return out
	}
	entry := func(pid int, text string) string { return fmt.Sprintf("%d ml/guest %s %s", pid, first, text) }
	const managed, unmanaged = "the program uses a GPU that its pod was not granted: best effort there", "a program that is not managed uses a GPU that its pod was not granted"
	await(t, "two entries in the journal", func() bool { return len(faults()) == 2 })
	late.want("ok", "join 2")
	await(t, "an entry of the next program", func() bool { return len(faults()) > 2 })
	want := []string{entry(b.pid, managed), entry(bare.pid, unmanaged), entry(late.pid, managed)}
	if slices.Sort(want); !slices.Equal(faults(), want) {
		t.Errorf("journal %q, want %q", faults(), want)
	}
	d.set(t, "dra", owner, grant("guest", podB, "gpu-latency", 10, second, first))
	if got := hints(b, first); got != "10 40" {
		t.Errorf("after a grant of both GPUs: %s", got)
	}
}
