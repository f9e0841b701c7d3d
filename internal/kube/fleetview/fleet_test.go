// SPDX-License-Identifier: Apache-2.0

package fleetview

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"xsched/internal/control"
	"xsched/internal/screen"
	"xsched/internal/top"
)

// snapshot has programs given as NAMESPACE/POD, or as "" outside a pod, with PIDs from 100 on.
func snapshot(policy string, pods ...string) *control.Snapshot {
	s := &control.Snapshot{
		Daemon:  control.Version{Version: "2.0.0"},
		List:    control.List{Policy: policy, Mode: "live"},
		Devices: []control.Device{{ID: "0000:01:00.0", Utilization: 0.5}},
	}
	for i, pod := range pods {
		namespace, name, _ := strings.Cut(pod, "/")
		s.List.Processes = append(s.List.Processes, control.Process{PID: 100 + i, Session: uint64(i), Namespace: namespace, Pod: name, State: control.StateRunning})
	}
	return s
}

func example() Fleet {
	return Fleet{TimeNS: 1, Nodes: []Node{
		{Name: "a", Snapshot: snapshot("HPF", "red/web", "blue/train")},
		{Name: "b", Error: "the daemon waits: ImagePullBackOff"},
		{Name: "c", Snapshot: snapshot("CFS", "red/db", "")},
	}}
}

func TestMerge(t *testing.T) {
	fleet := example()
	fleet.Nodes[2].Snapshot.Problems = []control.Problem{{Cause: "driver: no kernel module is loaded", Remedy: "load it"}}
	merged := fleet.Merged()
	if p := merged.Problems; len(p) != 1 || p[0].Cause != "c: driver: no kernel module is loaded" || p[0].Remedy != "load it" {
		t.Errorf("problems: %+v", p)
	}
	if merged.Fleet.Nodes != 2 || len(merged.Fleet.Lost) != 1 || merged.Fleet.Lost[0] != "node b: the daemon waits: ImagePullBackOff" {
		t.Errorf("nodes: %+v", merged.Fleet)
	}
	if merged.List.Policy != "mixed" || merged.List.Mode != "live" || merged.Daemon.Version != "2.0.0" {
		t.Errorf("policy %q, mode %q, version %q", merged.List.Policy, merged.List.Mode, merged.Daemon.Version)
	}
	for _, n := range []int{0, 2} {
		fleet.Nodes[n].Snapshot.List.Mode, fleet.Nodes[n].Snapshot.List.ModeLevel = "level", 1
	}
	if l := fleet.Merged().List; l.Mode != "level" || l.ModeLevel != 1 {
		t.Errorf("level 1 everywhere is shown as mode %q, level %d", l.Mode, l.ModeLevel)
	}
	fleet.Nodes[2].Snapshot.List.ModeLevel = 2
	if l := fleet.Merged().List; l.Mode != "mixed" || l.ModeLevel != 0 {
		t.Errorf("levels 1 and 2 are shown as mode %q, level %d", l.Mode, l.ModeLevel)
	}
	if len(merged.Devices) != 2 || merged.Devices[1].ID != "c 0000:01:00.0" {
		t.Errorf("devices: %+v", merged.Devices)
	}
	// The nodes have equal PIDs and sessions; the tenants must stay apart.
	seen := map[uint64]bool{}
	var nodes []string
	for _, p := range merged.List.Processes {
		if seen[p.Session] {
			t.Errorf("session %d twice", p.Session)
		}
		seen[p.Session] = true
		nodes = append(nodes, merged.Fleet.Node[p.Session])
	}
	if got := strings.Join(nodes, ""); got != "aacc" {
		t.Errorf("nodes of the tenants: %s", got)
	}
	if again := fleet.Merged(); again.List.Processes[0].Session != merged.List.Processes[0].Session {
		t.Error("a tenant's session changes between snapshots")
	}
	if s := fleet.Nodes[0].Snapshot; s.Devices[0].ID != "0000:01:00.0" || s.List.Processes[0].Session != 0 {
		t.Error("merging changed a node's snapshot")
	}
}

func TestFilter(t *testing.T) {
	for _, c := range []struct {
		filter Filter
		want   string
	}{
		{Filter{}, "a/red/web a/blue/train c/red/db c//"},
		{Filter{Namespace: "red"}, "a/red/web c/red/db"},
		{Filter{Pods: map[Pod]bool{{"blue", "train"}: true, {"green", "web"}: true}}, "a/blue/train"},
		{Filter{Namespace: "red", Pods: map[Pod]bool{{"blue", "train"}: true}}, ""},
		{Filter{Pods: map[Pod]bool{}}, ""}, // a selector that matches nothing
	} {
		fleet := c.filter.Apply(example())
		var order []string
		for _, n := range fleet.Nodes {
			if n.Snapshot == nil {
				continue
			}
			for _, p := range n.Snapshot.List.Processes {
				order = append(order, n.Name+"/"+p.Namespace+"/"+p.Pod)
			}
		}
		if strings.Join(order, " ") != c.want {
			t.Errorf("%+v: %q, want %q", c.filter, order, c.want)
		}
		if len(fleet.Errors()) != 1 || len(fleet.Nodes) != 3 {
			t.Errorf("%+v hides a node", c.filter)
		}
	}
	var order []string
	fleet := example()
	for _, tenant := range fleet.Tenants() {
		order = append(order, tenant.Node+"/"+tenant.Namespace)
	}
	if got := strings.Join(order, " "); got != "a/blue a/red c/ c/red" {
		t.Errorf("order of tenants: %s", got)
	}
}

// TestIdleGPUs checks that a large fleet shows the GPUs that are in use; the others share a line.
func TestIdleGPUs(t *testing.T) {
	var fleet Fleet
	for i := range 1000 {
		s := snapshot("HPF")
		s.Devices = make([]control.Device, 8)
		for j := range s.Devices {
			s.Devices[j].ID = fmt.Sprint("gpu", j)
		}
		s.Devices[0].Processes = i % 2
		s.List.Devices = []control.DeviceSetting{{Device: "gpu0", Policy: "CFS"}}
		fleet.Nodes = append(fleet.Nodes, Node{Name: fmt.Sprintf("n%03d", i), Snapshot: s})
	}
	model := top.New(t.Context(), nil, top.Options{})
	model.Take(fleet.Merged(), nil)
	for height, want := range map[int][]string{0: {"n001 gpu0", "n999 gpu0", "1 program, policy CFS", "idle GPUs: 7500"}, 30: {"n001 gpu0", "493 more GPUs", "idle GPUs: 7500"}} {
		var text strings.Builder
		for _, line := range model.Lines(0, height) {
			text.WriteString(line.String() + "\n")
		}
		for _, w := range want {
			if !strings.Contains(text.String(), w) {
				t.Errorf("height %d: no %q in\n%.3000s", height, w, text.String())
			}
		}
		if strings.Contains(text.String(), "n000") {
			t.Errorf("height %d: an idle GPU has a line", height)
		}
	}
}

// TestView draws the merged snapshot with the view of a single daemon.
func TestView(t *testing.T) {
	fleet := example()
	model := top.New(t.Context(), nil, top.Options{})
	model.Take(fleet.Merged(), nil)
	for _, size := range [][2]int{{120, 24}, {0, 0}, {40, 10}} {
		var text strings.Builder
		for _, line := range model.Lines(size[0], size[1]) {
			if width := screen.Width(line.String()); size[0] > 0 && width > size[0] {
				t.Errorf("%v: a line has %d columns", size, width)
			}
			text.WriteString(line.String() + "\n")
		}
		for _, want := range []string{"nodes 2", "b: the daemon waits", "NODE"} {
			if !strings.Contains(text.String(), want) {
				t.Errorf("%v: no %q in\n%s", size, want, text.String())
			}
		}
		if size[0] == 40 {
			continue
		}
		for _, want := range []string{"POD", "red/web", "blue/train", "c 0000:01:00.0"} {
			if !strings.Contains(text.String(), want) {
				t.Errorf("%v: no %q in\n%s", size, want, text.String())
			}
		}
		if strings.Contains(text.String(), "suspend") || strings.Contains(text.String(), "USER") {
			t.Errorf("%v: the view offers keys or the user:\n%s", size, text.String())
		}
	}
}

func TestChoose(t *testing.T) {
	running := []corev1.ContainerStatus{{Name: "node"}, {Name: "daemon", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}
	pod := func(name, node string, statuses []corev1.ContainerStatus, ending bool) corev1.Pod {
		p := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PodSpec{NodeName: node}, Status: corev1.PodStatus{Phase: corev1.PodPending, ContainerStatuses: statuses}}
		if ending {
			p.DeletionTimestamp = &metav1.Time{}
		}
		return p
	}
	waiting := []corev1.ContainerStatus{{Name: "daemon", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff", Message: "back-off\n10s"}}}}
	got := choose([]corev1.Pod{
		pod("old", "b", running, true), pod("new", "b", running, false), // an update
		pod("starts", "a", nil, false), pod("crashes", "c", waiting, false), pod("unplaced", "", nil, false),
	})
	want := []Target{{"a", "starts", "the pod is pending"}, {"b", "new", ""}, {"c", "crashes", "the daemon waits: CrashLoopBackOff back-off 10s"}}
	if len(got) != len(want) {
		t.Fatalf("targets %v, want %v", got, want)
	}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("target %v, want %v", got[i], want[i])
		}
	}
}
