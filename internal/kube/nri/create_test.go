// SPDX-License-Identifier: Apache-2.0

package nri

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/api"
	corev1 "k8s.io/api/core/v1"

	"xsched/internal/control"
	"xsched/internal/kube/classes"
	"xsched/internal/kube/cluster"
)

// watch starts the pod cache and waits until it has all pods.
func (w *world) watch(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		w.cluster.Run(ctx, w.plugin.Changed)
	}()
	t.Cleanup(func() { cancel(); <-done })
	eventually(t, "pods known", w.cluster.Synced)
}

// create creates the container app and reports whether it got the shim.
func (w *world) create(t *testing.T, s *api.PodSandbox, c *api.Container) bool {
	t.Helper()
	if c.Name == "" {
		c.Name = "app"
	}
	c.Id, c.PodSandboxId = id(len(w.plugin.containers)+1), "s1"
	got, updates, err := w.plugin.CreateContainer(t.Context(), s, c)
	if err != nil || updates != nil {
		t.Errorf("updates %v, error %v", updates, err)
	}
	return len(got.GetMounts()) == 2
}

func TestCreate(t *testing.T) {
	high := testPod(nil, nil, "app!", "side")
	high.Spec.PriorityClassName = "high"
	allowed := map[string]string{"allow": "latency"}
	for _, c := range []struct {
		name      string
		pod       *corev1.Pod // nil: the API server has none
		namespace map[string]string
		down      bool
		container *api.Container
		shim      bool
		event     string // part; empty: none
		asked     int    // requests to the API server
	}{
		{"asks for nothing", testPod(nil, nil, "app!"), nil, false, &api.Container{}, false, "", 0},
		{"label", testPod(want("batch"), nil, "app!"), nil, false, &api.Container{}, true, "Normal PriorityClassApplied: container app: GPU work has the class batch", 0},
		{"annotation", testPod(nil, want("batch"), "app!"), nil, false, &api.Container{}, true, "Applied", 0},
		{"label before annotation", testPod(want("batch"), want("latency"), "app!"), nil, false, &api.Container{}, true, "class batch", 0},
		{"allowed namespace", testPod(want("latency"), nil, "app!"), allowed, false, &api.Container{}, true, "class latency", 1},
		{"other namespace", testPod(want("latency"), nil, "app!"), nil, false, &api.Container{}, false, "Warning PriorityClassRefused: container app: GPU work has no class: namespace team may not use the class latency; ", 1},
		{"unknown class", testPod(want("turbo"), nil, "app!"), nil, false, &api.Container{}, false, "use batch, latency", 0},
		{"API server down", testPod(want("latency"), nil, "app!"), nil, true, &api.Container{}, true, "Warning PriorityClassPending", 1},
		{"PriorityClass", high, nil, false, &api.Container{}, true, "class latency", 0},
		{"PriorityClass, no device", high, nil, false, &api.Container{Name: "side"}, false, "", 0},
		{"opts out", testPod(want("none"), nil, "app!"), nil, false, &api.Container{}, false, "", 0},
		{"switched off", testPod(want("batch"), nil, "app!"), nil, false, &api.Container{Env: []string{"XSCHED_DISABLE=1"}}, false, "", 0},
		{"no device, all containers", testPod(want("batch"), nil, "app", "side"), nil, false, &api.Container{Name: "side"}, true, "Applied", 0},
		{"claim", testPod(want("batch"), nil, "app?"), nil, false, &api.Container{CDIDevices: []*api.CDIDevice{{Name: cluster.Driver + "/claim=x"}}}, false, "", 0},
		{"place taken", testPod(want("batch"), nil, "app!"), nil, false, &api.Container{Mounts: []*api.Mount{{Destination: "/run/xsched", Source: "/srv"}}}, false, "Warning ShimNotInjected: container app: the container mounts /srv", 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, testFile)
			w.pods.Add(c.pod)
			w.down = c.down
			if c.namespace != nil {
				w.namespaces["team"] = c.namespace
			}
			w.watch(t)
			if got := w.create(t, testSandbox(c.pod.Labels, c.pod.Annotations), c.container); got != c.shim {
				t.Errorf("shim: %v", got)
			}
			if all := strings.Join(w.events, "\n"); len(w.events) > 1 || (c.event == "") != (all == "") || !strings.Contains(all, c.event) {
				t.Errorf("events %q, want %q", w.events, c.event)
			}
			if w.asked != c.asked {
				t.Errorf("%d requests to the API server, want %d", w.asked, c.asked)
			}
		})
	}
}

// TestCreateWithoutCache: the pod is not in the cache, as in a plugin that starts.
func TestCreateWithoutCache(t *testing.T) {
	w := newWorld(t, testFile)
	w.down = true
	now := time.Now()
	w.cluster.now = func() time.Time { return now }
	for range 3 { // the first waits for the API server, the others don't
		if !w.create(t, testSandbox(want("batch"), nil), &api.Container{}) {
			t.Error("a labelled pod got no shim")
		}
	}
	if w.create(t, testSandbox(nil, nil), &api.Container{}) {
		t.Error("a pod that asks for nothing got the shim")
	}
	if w.asked != 1 {
		t.Errorf("%d requests to an API server that does not answer, want 1", w.asked)
	}
	now = now.Add(lookupPause)
	w.create(t, testSandbox(want("batch"), nil), &api.Container{})
	if w.asked != 2 {
		t.Errorf("%d requests after the pause, want 2", w.asked)
	}
	if _, _, ready := w.plugin.collect(t.Context()); ready {
		t.Error("grants are ready before anything is known")
	}
}

// TestCreateWithoutDaemon: without a daemon nobody knows where the shim is.
func TestCreateWithoutDaemon(t *testing.T) {
	w := newWorld(t, testFile)
	w.pods.Add(testPod(want("batch"), nil, "app!"))
	w.watch(t)
	w.noEdits = errors.New("no daemon")
	if w.create(t, testSandbox(want("batch"), nil), &api.Container{}) || len(w.events) != 1 || !strings.Contains(w.events[0], reasonConflict) {
		t.Errorf("events %q", w.events)
	}
	w.noEdits = nil
	w.create(t, testSandbox(want("batch"), nil), &api.Container{})
	w.noEdits = errors.New("no daemon")
	if !w.create(t, testSandbox(want("batch"), nil), &api.Container{}) {
		t.Error("no shim, although the daemon was there a moment ago")
	}
}

func TestStaticPod(t *testing.T) {
	w := newWorld(t, testFile)
	pod := testPod(want("batch"), map[string]string{corev1.MirrorPodAnnotationKey: "0123456789abcdef0123456789abcdef"}, "app!")
	w.pods.Add(pod)
	w.watch(t)
	s := testSandbox(nil, nil)
	s.Uid = "0123456789abcdef0123456789abcdef"
	if w.cluster.Known(sandboxPod(s)) == nil {
		t.Error("the mirror of a static pod was not found")
	}
	s.Uid = "another"
	if w.cluster.Known(sandboxPod(s)) != nil {
		t.Error("a pod with the same name was taken for it")
	}
}

func TestPanicStartsNatively(t *testing.T) {
	w := newWorld(t, testFile)
	w.plugin.Classes = func() *classes.File { panic("bug") }
	if w.create(t, testSandbox(want("batch"), nil), &api.Container{}) {
		t.Error("shim in spite of a panic")
	}
	if got, _, err := w.plugin.CreateContainer(t.Context(), nil, nil); got != nil || err != nil {
		t.Error(got, err)
	}
}

// TestChangesReachTheDaemon: what is decided about a running container follows labels, classes and
// namespaces.
func TestChangesReachTheDaemon(t *testing.T) {
	w := newWorld(t, testFile)
	w.namespaces["team"] = map[string]string{"allow": "latency"}
	w.pods.Add(testPod(want("latency"), nil, "app!"))
	w.refuse = errors.New("no daemon")
	now := time.Now()
	w.cluster.now = func() time.Time { w.mu.Lock(); defer w.mu.Unlock(); return now }
	w.plugin.retry = 10 * time.Millisecond
	w.run(t, "/nowhere/nri.sock")
	eventually(t, "pods known", w.cluster.Synced)
	w.create(t, testSandbox(want("latency"), nil), &api.Container{})
	time.Sleep(2 * publishGap)
	w.locked(func() {
		if w.sends > 0 {
			t.Error("grants sent before the runtime listed its containers: they would replace those of others")
		}
	})
	w.plugin.mu.Lock()
	w.plugin.known = true
	w.plugin.mu.Unlock()
	w.plugin.Changed()
	eventually(t, "attempt", func() bool { ok := false; w.locked(func() { ok = w.sends > 0; w.refuse = nil }); return ok })
	eventually(t, "grant after the daemon is back", func() bool { return w.classesOf() == "app:latency" })

	w.pods.Modify(testPod(want("batch"), nil, "app!"))
	eventually(t, "class by a changed label", func() bool { return w.classesOf() == "app:batch" })
	w.pods.Modify(testPod(want("latency"), nil, "app!"))
	eventually(t, "class by the old label", func() bool { return w.classesOf() == "app:latency" })

	w.locked(func() { delete(w.namespaces, "team"); now = now.Add(labelsFresh) })
	w.plugin.Changed()
	eventually(t, "name only, without the namespace's label", func() bool { return w.classesOf() == "app:" })
	w.locked(func() {
		if last := w.events[len(w.events)-1]; !strings.Contains(last, reasonRefused) {
			t.Errorf("last event %q", last)
		}
		w.file, _ = classes.Parse([]byte("classes: {latency: {priority: 3, namespaces: [team]}}"))
	})
	w.plugin.Changed()
	eventually(t, "class by a changed file", func() bool { return w.classesOf() == "app:latency" })
	var priority *int32
	w.locked(func() { priority = w.daemon[0].Priority })
	if priority == nil || *priority != 3 {
		t.Errorf("priority %v", priority)
	}
	if err := w.plugin.StopPodSandbox(t.Context(), testSandbox(nil, nil)); err != nil {
		t.Fatal(err)
	}
	eventually(t, "no grants", func() bool { return w.classesOf() == "" })
}

// TestLabelsBeforeNames: the time in which the plugin was not ready does not count, so the first grants
// have the classes although the labels of a namespace came late.
func TestLabelsBeforeNames(t *testing.T) {
	w := newWorld(t, testFile)
	w.namespaces["team"] = map[string]string{"allow": "latency"}
	w.pods.Add(testPod(want("latency"), nil, "app!"))
	w.down = true
	var collected atomic.Int32
	file := w.plugin.Classes
	w.plugin.Classes = func() *classes.File { collected.Add(1); return file() }
	w.cluster.now = func() time.Time { return time.Now().Add(time.Duration(collected.Load()) * lookupPause) } // asks each time
	w.plugin.retry = time.Hour                                                                                // rounds happen only when the test says so
	w.run(t, "/nowhere/nri.sock")
	eventually(t, "pods known", w.cluster.Synced)
	w.create(t, testSandbox(want("latency"), nil), &api.Container{})
	for range 2 * unknownLimit { // rounds without the runtime's list
		w.plugin.Changed()
		eventually(t, "a round", func() bool { return len(w.plugin.dirty) == 0 })
	}
	w.plugin.mu.Lock()
	w.plugin.known = true
	w.plugin.mu.Unlock()
	for range 3 {
		before := collected.Load()
		w.plugin.Changed()
		eventually(t, "a round", func() bool { return collected.Load() > before })
	}
	w.locked(func() {
		if w.sends > 0 {
			t.Errorf("mere names sent: %+v", w.daemon)
		}
		w.down = false
	})
	w.plugin.Changed()
	eventually(t, "grant", func() bool { return w.classesOf() == "app:latency" })
}

// TestClear: without the plugin the grants of labels go, also if the daemon answers later.
func TestClear(t *testing.T) {
	d := &forgetful{refuse: 2, grants: []control.Grant{{ID: "old"}}}
	clearEvery(t.Context(), d, slog.New(slog.DiscardHandler), time.Millisecond)
	if d.refuse != 0 || d.source != Source || d.grants == nil || len(d.grants) != 0 {
		t.Errorf("%+v", d)
	}
}

type forgetful struct {
	refuse int
	source string
	grants []control.Grant
}

func (d *forgetful) SetGrants(_ context.Context, r control.GrantsRequest) (reply control.GrantsReply, err error) {
	if d.refuse > 0 {
		d.refuse--
		return reply, errors.New("no daemon")
	}
	d.source, d.grants = r.Source, r.Grants
	return reply, nil
}

// TestPreloadByReference: the value of such a variable is not known here, so the pod gets an event.
func TestPreloadByReference(t *testing.T) {
	w := newWorld(t, testFile)
	pod := testPod(nil, nil, "app?")
	pod.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "LD_PRELOAD", ValueFrom: &corev1.EnvVarSource{}}}
	w.pods.Add(pod)
	w.watch(t)
	w.create(t, testSandbox(nil, nil), &api.Container{
		Name: "app", Env: []string{"LD_PRELOAD=" + testEdits().Preload}, CDIDevices: []*api.CDIDevice{{Name: cluster.Driver + "/claim=c"}},
	})
	if len(w.events) != 1 || !strings.Contains(w.events[0], reasonPreload) {
		t.Errorf("events %q", w.events)
	}
}

func TestClaims(t *testing.T) {
	w := newWorld(t, testFile)
	w.pods.Add(testPod(nil, nil, "app?", "side?"))
	w.watch(t)
	for _, name := range []string{"app", "side"} {
		w.create(t, testSandbox(nil, nil), &api.Container{Name: name, CDIDevices: []*api.CDIDevice{{Name: cluster.Driver + "/claim=" + name}, {Name: "example.com/nic=1"}}})
	}
	w.plugin.known = true
	grants, _, ready := w.plugin.collect(t.Context())
	if !ready || len(grants) != 2 {
		t.Fatalf("%+v", grants)
	}
	for _, g := range grants {
		if g.ID != g.ContainerID || g.Class != "gpu-batch" || g.ContainerID == "" {
			t.Errorf("%+v", g)
		}
	}
	if err := (&control.GrantsRequest{Source: Source, Grants: grants}).Check(); err != nil {
		t.Error(err)
	}
}
