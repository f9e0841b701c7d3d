// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"

	"xsched/internal/control"
)

// TestEvents: GPUs that come, get a taint and fall off are events on the node, once each. The pods of a claim
// learn that its GPU is gone.
func TestEvents(t *testing.T) {
	f, to, ctx, events := newFolders(t), &published{}, t.Context(), &notes{}
	n := newNode(t, f, apiServer(t, http.NotFound))
	n.plugin.events = events
	expect := func(want ...string) {
		t.Helper()
		events.mu.Lock()
		defer events.mu.Unlock()
		slices.Sort(events.lines)
		if !slices.Equal(events.lines, want) {
			t.Errorf("events %q, want %q", events.lines, want)
		}
		events.lines = nil
	}
	gpu := func(id string, level int) control.Device {
		return control.Device{ID: id, Driver: "d", MaxLevel: level, Probed: true, Access: bindable}
	}
	n.look(ctx, to) // a node whose driver is not loaded yet
	expect()
	f.daemon.set(func() { f.daemon.devices = []control.Device{gpu("0000:01:00.0", 3), gpu("0000:02:00.0", 3)} })
	n.look(ctx, to)
	n.look(ctx, to)
	expect("Node Normal GpuAdded: 2 GPUs came: gpu-0000-01-00-0, gpu-0000-02-00-0")
	claim := allocated(1, []string{"gpu-0000-02-00-0"}, 0)
	if _, err := n.plugin.PrepareResourceClaims(ctx, []*resourceapi.ResourceClaim{claim}); err != nil {
		t.Fatal(err)
	}
	n.look(ctx, to)
	expect()
	f.daemon.set(func() { f.daemon.devices = []control.Device{gpu("0000:01:00.0", 1), gpu("0000:02:00.0", 3)} })
	n.look(ctx, to)
	expect("Node Warning GpuTainted: 1 GPUs have a taint: new claims avoid them: gpu-0000-01-00-0 (gpu.xsched.dev/level-1)")
	f.daemon.set(func() { f.daemon.devices = f.daemon.devices[:1] })
	n.look(ctx, to)
	expect("Node Warning GpuRemoved: 1 GPUs are gone: the driver no longer lists them: gpu-0000-02-00-0",
		"Pod Warning GpuLost: gpu-0000-02-00-0 of claim claim-1 is gone; delete the pod and its claim, so that another GPU is allocated")
}

// TestFaultEvents: faults of a pod's programs in the daemon's journal are events on the pod, once each, also after the
// daemon has restarted. What was there before the plugin started is not, and neither are other entries.
func TestFaultEvents(t *testing.T) {
	f, to, ctx, events := newFolders(t), &published{}, t.Context(), &notes{}
	f.daemon.devices = twoGPUs()
	n := newNode(t, f, apiServer(t, http.NotFound))
	n.plugin.events = events
	if err := n.store.prepare(ctx, records(t, 1)); err != nil {
		t.Fatal(err)
	}
	enter := func(pod, kind, detail string) {
		f.daemon.set(func() {
			j := &f.daemon.journal
			j.Next++
			j.Entries = append(j.Entries, control.JournalEntry{Seq: j.Next, Kind: kind, Pod: pod, Device: "0000:02:00.0", Detail: detail})
		})
	}
	enter("team/pod-1/main", control.JournalFault, "before the plugin")
	n.look(ctx, to)
	enter("team/pod-1/main", control.JournalFault, "not granted")
	enter("team/pod-1", control.JournalChange, "a change")
	enter("team/other", control.JournalFault, "of a pod without a claim")
	enter("", control.JournalFault, "of a program on the host")
	n.look(ctx, to)
	n.look(ctx, to)
	f.daemon.set(func() { f.daemon.started, f.daemon.journal = 2, control.Journal{} })
	enter("team/pod-1", control.JournalFault, "of the next daemon")
	n.look(ctx, to)
	events.mu.Lock()
	defer events.mu.Unlock()
	want := []string{"Pod Warning GpuFault: gpu-0000-02-00-0: not granted", "Pod Warning GpuFault: gpu-0000-02-00-0: of the next daemon"}
	if got := slices.DeleteFunc(events.lines, func(s string) bool { return !strings.Contains(s, "GpuFault") }); !slices.Equal(got, want) {
		t.Errorf("events %q, want %q", got, want)
	}
}

// TestGrantNotHonoured: claims whose grants the daemon does not take are an event on the node, once per reason.
func TestGrantNotHonoured(t *testing.T) {
	f, events := newFolders(t), &notes{}
	n := newNode(t, f, apiServer(t, http.NotFound))
	n.plugin.events = events
	prepare := func() error {
		out, err := n.plugin.PrepareResourceClaims(t.Context(), []*resourceapi.ResourceClaim{allocated(1, []string{gpu0}, 0)})
		for _, result := range out {
			err = errors.Join(err, result.Err)
		}
		return err
	}
	f.daemon.set(func() { f.daemon.down = true })
	for range 3 {
		if err := prepare(); err == nil {
			t.Fatal("prepared without a daemon")
		}
	}
	if len(events.lines) != 1 {
		t.Errorf("events %q", events.lines)
	}
	f.daemon.set(func() { f.daemon.down = false })
	if err := prepare(); err != nil {
		t.Fatal(err)
	}
	f.daemon.set(func() { f.daemon.down = true })
	n.report.refused(1, errors.New("no daemon again"))
	if len(events.lines) != 2 {
		t.Errorf("events %q", events.lines)
	}
}

// TestReadiness: claims can be prepared while the daemon answers and the kubelet knows the plugin.
func TestReadiness(t *testing.T) {
	f, to := newFolders(t), &published{}
	n := newNode(t, f, apiServer(t, http.NotFound))
	registered := false
	n.watchRegistration(func() bool { return registered })
	late := func() (names []string) {
		for _, s := range n.options.Health.States() {
			if s.Late() {
				names = append(names, s.Name)
			}
			if s.Late() && s.Vital {
				t.Errorf("a restart does not help %s", s.Name)
			}
		}
		return names
	}
	const daemon, kubelet = "answers of the daemon", "registration with the kubelet"
	if got := late(); !slices.Equal(got, []string{daemon, kubelet}) {
		t.Errorf("at the start %q are late", got)
	}
	n.look(t.Context(), to)
	registered = true
	if got := late(); got != nil {
		t.Errorf("%q are late", got)
	}
	f.daemon.set(func() { f.daemon.down = true })
	n.look(t.Context(), to)
	n.parts.answers.began = n.parts.answers.began.Add(-answerAge(0) - time.Second)
	if got := late(); !slices.Equal(got, []string{daemon}) {
		t.Errorf("without a daemon %q are late", got)
	}
}
