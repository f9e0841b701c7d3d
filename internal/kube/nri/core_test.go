// SPDX-License-Identifier: Apache-2.0

package nri

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/nri/pkg/api"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"xsched/internal/control"
	"xsched/internal/kube/classes"
	"xsched/internal/kube/edits"
)

const (
	testUID    = "11111111-2222-3333-4444-555555555555"
	testClient = "/host/run/client"
	testShim   = "/host/lib/libxsched.so"
)

func testEdits() edits.Edits { return edits.New(testShim, testClient) }

// id returns a container id.
func id(n int) string { return fmt.Sprintf("%064x", n) }

func testSandbox(labels, annotations map[string]string) *api.PodSandbox {
	return &api.PodSandbox{Id: "s1", Name: "pod", Namespace: "team", Uid: testUID, Labels: labels, Annotations: annotations}
}

// testPod returns a pod with containers. A name with ! has a device of a plugin, one with ? a claim.
func testPod(labels, annotations map[string]string, containers ...string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "pod", Namespace: "team", UID: testUID, Labels: labels, Annotations: annotations}}
	for _, name := range containers {
		c := corev1.Container{Name: strings.TrimRight(name, "!?")}
		switch name[len(name)-1] {
		case '!':
			c.Resources.Limits = corev1.ResourceList{"example.com/gpu": resource.MustParse("1"), "cpu": resource.MustParse("1")}
		case '?':
			c.Resources.Claims = []corev1.ResourceClaim{{Name: "gpu"}}
		default:
			c.Resources.Limits = corev1.ResourceList{"requests.kubernetes.io/x": resource.MustParse("1"), "hugepages-2Mi": resource.MustParse("2Mi"), "example.com/gpu": resource.MustParse("0")}
		}
		p.Spec.Containers = append(p.Spec.Containers, c)
	}
	return p
}

func TestSelected(t *testing.T) {
	only := func(names string) map[string]string { return map[string]string{ContainersAnnotation: names} }
	for _, c := range []struct {
		name    string
		pod     *corev1.Pod
		c       container
		outcome classes.Outcome
		want    bool
	}{
		{"device", testPod(nil, nil, "app!", "side"), container{name: "app"}, classes.Granted, true},
		{"beside a device", testPod(nil, nil, "app!", "side"), container{name: "side"}, classes.Granted, false},
		{"claim of any driver", testPod(nil, nil, "app?", "side"), container{name: "app"}, classes.Granted, true},
		{"CDI device", testPod(nil, nil, "app", "side!"), container{name: "app", devices: true}, classes.Granted, true},
		{"no devices", testPod(nil, nil, "app", "side"), container{name: "side"}, classes.Granted, true},
		{"no devices, by PriorityClass", testPod(nil, nil, "app", "side"), container{name: "side"}, classes.Default, false},
		{"device, by PriorityClass", testPod(nil, nil, "app!"), container{name: "app"}, classes.Default, true},
		{"named", testPod(nil, only("x, side"), "app!", "side"), container{name: "side"}, classes.Granted, true},
		{"not named", testPod(nil, only("x, side"), "app!", "side"), container{name: "app"}, classes.Granted, false},
		{"nothing named", testPod(nil, only(""), "app!"), container{name: "app"}, classes.Granted, false},
		{"pod not found", testPod(nil, nil), container{name: "app"}, classes.Granted, true},
		{"container not in the pod", testPod(nil, nil, "app!"), container{name: "debugger"}, classes.Granted, false},
	} {
		if got := selected(c.pod, &c.c, c.outcome); got != c.want {
			t.Errorf("%s: %v", c.name, got)
		}
	}
}

func TestAdjustment(t *testing.T) {
	e := testEdits()
	clientMount := &api.Mount{Destination: edits.Client + "/", Source: testClient, Type: "bind"}
	for _, c := range []struct {
		name      string
		container *api.Container
		env       []string // with the removals
		mounts    int
		err       string
	}{
		{"plain", &api.Container{}, []string{"XSCHED_DIR=/run/xsched", "LD_PRELOAD=" + edits.Shim}, 2, ""},
		{"other preloads", &api.Container{Env: []string{"LD_PRELOAD=/a.so /b.so", "A=1"}}, []string{"XSCHED_DIR=/run/xsched", "-LD_PRELOAD=", "LD_PRELOAD=/a.so /b.so:" + edits.Shim}, 2, ""},
		{"empty preload", &api.Container{Env: []string{"LD_PRELOAD="}}, []string{"XSCHED_DIR=/run/xsched", "-LD_PRELOAD=", "LD_PRELOAD=" + edits.Shim}, 2, ""},
		{"own variables count", &api.Container{Env: []string{"XSCHED_DIR=/elsewhere"}}, []string{"LD_PRELOAD=" + edits.Shim}, 2, ""},
		{"the last of two counts", &api.Container{Env: []string{"LD_PRELOAD=/a.so", "LD_PRELOAD=/b.so"}}, []string{"XSCHED_DIR=/run/xsched", "-LD_PRELOAD=", "LD_PRELOAD=/b.so:" + edits.Shim}, 2, ""},
		{"similar names", &api.Container{Env: []string{"LD_PRELOAD_X=/a.so", "XSCHED_DIRS=b"}}, []string{"XSCHED_DIR=/run/xsched", "LD_PRELOAD=" + edits.Shim}, 2, ""},
		{"own mount of the folder", &api.Container{Mounts: []*api.Mount{clientMount}}, []string{"XSCHED_DIR=/run/xsched", "LD_PRELOAD=" + edits.Shim}, 1, ""},
		{"another folder there", &api.Container{Mounts: []*api.Mount{{Destination: edits.Client, Source: "/srv"}}}, nil, 0, "mounts /srv at /run/xsched"},
		{"shim beside others", &api.Container{Env: []string{"LD_PRELOAD=/x" + edits.Shim}}, []string{"XSCHED_DIR=/run/xsched", "-LD_PRELOAD=", "LD_PRELOAD=/x" + edits.Shim + ":" + edits.Shim}, 2, ""},
		{"shim preloaded already", &api.Container{Env: []string{"LD_PRELOAD=/a.so:" + edits.Shim, "XSCHED_DIR=x"}, Mounts: []*api.Mount{clientMount, {Destination: edits.Shim, Source: testShim}}}, nil, 0, ""},
	} {
		got, err := adjustment(e, c.container)
		if c.err != "" {
			if err == nil || !strings.Contains(err.Error(), c.err) || got != nil {
				t.Errorf("%s: %v, %v", c.name, got, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		var env []string
		for _, v := range got.GetEnv() {
			env = append(env, v.ToOCI())
		}
		if !slices.Equal(env, c.env) || len(got.GetMounts()) != c.mounts || (got == nil) != (len(env)+c.mounts == 0) {
			t.Errorf("%s: %q, %v", c.name, env, got.GetMounts())
		}
		for _, m := range got.GetMounts() {
			if !slices.Contains(m.Options, "ro") {
				t.Errorf("%s: %v is not read-only", c.name, m)
			}
		}
	}
}

func TestKeepPreload(t *testing.T) {
	e := testEdits()
	pod := testPod(nil, nil, "app")
	shim := &api.Container{Name: "app", Env: []string{"LD_PRELOAD=" + edits.Shim}}
	if got := keepPreload(nil, e, pod, shim); got != nil {
		t.Errorf("a pod without LD_PRELOAD: %v", got)
	}
	pod.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "LD_PRELOAD", Value: "/a.so"}}
	want := []*api.KeyValue{{Key: "-LD_PRELOAD"}, {Key: "LD_PRELOAD", Value: "/a.so:" + edits.Shim}}
	if got := keepPreload(nil, e, pod, shim); !reflect.DeepEqual(got.GetEnv(), want) || len(got.GetMounts()) > 0 {
		t.Errorf("%v", got)
	}
	both := &api.Container{Name: "app", Env: []string{"LD_PRELOAD=/a.so:" + edits.Shim}}
	if got := keepPreload(nil, e, pod, both); got != nil {
		t.Errorf("nothing was lost: %v", got)
	}
}

func TestContainerGrants(t *testing.T) {
	ten := int32(10)
	file, err := classes.Parse([]byte("classes: {latency: {priority: 10, share: 40, level: 2, latencyTarget: 20ms}}"))
	if err != nil {
		t.Fatal(err)
	}
	latency := classes.Decision{Outcome: classes.Granted, Name: "latency", Class: file.Classes["latency"]}
	nothing, refused := classes.Decision{}, classes.Decision{Outcome: classes.Refused, Name: "latency"}
	claims := func(device string) []control.Grant {
		switch device {
		case "c1":
			return []control.Grant{{ID: "c1", Namespace: "team", Pod: "pod", PodUID: testUID, Class: "gpu-latency", Devices: []string{"0000:01:00.0"}, Priority: &ten}}
		case "theirs":
			return []control.Grant{{ID: "c4", Namespace: "other", Pod: "pod", PodUID: testUID, Class: "gpu-latency", Devices: []string{"0000:01:00.0"}, Priority: &ten}}
		case "c3":
			return []control.Grant{{ID: "c3", Namespace: "team", Pod: "pod", PodUID: testUID, Class: "gpu-batch", Devices: []string{"0000:02:00.0"}, Priority: new(int32(-10))}}
		}
		return nil
	}
	pod := testPod(nil, nil, "app!", "side")
	groups := func(name string) *corev1.Pod {
		return testPod(map[string]string{"xsched.dev/group": name}, nil, "app!")
	}
	annotated := testPod(nil, map[string]string{"xsched.dev/group": strings.Repeat("x", 64)}, "app!")
	for _, c := range []struct {
		name string
		pod  *corev1.Pod
		c    container
		d    classes.Decision
		want string // class/priority/group/device of each grant
	}{
		{"class", pod, container{name: "app", edited: true}, latency, "latency/10//"},
		{"class, by a device only", pod, container{name: "app"}, latency, "latency/10//"},
		{"class of the pod, another container", pod, container{name: "side"}, latency, ""},
		{"group", groups("job-1"), container{name: "app", edited: true}, latency, "latency/10/job-1/"},
		{"bad group", annotated, container{name: "app", edited: true}, latency, "latency/10//"},
		{"refused", pod, container{name: "app"}, refused, "/-//"},
		{"refused later", pod, container{name: "side", edited: true}, refused, "/-//"},
		{"switched off", pod, container{name: "app", disabled: true}, latency, "/-//"},
		{"named by a device", pod, container{name: "app"}, nothing, "/-//"},
		{"named by the socket", pod, container{name: "side", edited: true}, nothing, "/-//"},
		{"nothing", pod, container{name: "side"}, nothing, ""},
		{"claim", pod, container{name: "app", edited: true, devices: true, claims: []string{"c1"}}, nothing, "gpu-latency/10//0000:01:00.0"},
		{"two claims", pod, container{name: "app", edited: true, devices: true, claims: []string{"c1", "c3"}}, nothing, "gpu-batch/-10//0000:01:00.0+0000:02:00.0"},
		{"claim before label", pod, container{name: "app", edited: true, devices: true, claims: []string{"c1"}}, latency, "gpu-latency/10//0000:01:00.0"},
		{"claim of another namespace", pod, container{name: "app", edited: true, devices: true, claims: []string{"theirs"}}, nothing, "/-//"},
		{"unknown claim", pod, container{name: "app", edited: true, devices: true, claims: []string{"c2"}}, latency, "/-//"},
	} {
		c.c.id, c.c.pod = id(1), testPod(nil, nil)
		var got []string
		for _, g := range c.c.grants(c.pod, c.d, claims) {
			if err := g.Check(); err != nil {
				t.Errorf("%s: %v", c.name, err)
			}
			if g.PodUID != testUID || g.ContainerID != id(1) || g.Namespace != "team" || g.Pod != "pod" || g.Container != c.c.name {
				t.Errorf("%s: %+v", c.name, g)
			}
			priority := "-"
			if g.Priority != nil {
				priority = fmt.Sprint(*g.Priority)
			}
			got = append(got, strings.Join([]string{g.Class, priority, g.Group, strings.Join(g.Devices, "+")}, "/"))
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
	full := (&container{id: id(1), name: "app", pod: pod, edited: true}).grants(pod, latency, claims)[0]
	if *full.Utilization != 40 || *full.Level != 2 || *full.LatencyTargetUS != 20_000 {
		t.Errorf("hints: %+v", full)
	}
}

// TestOneBadNameDoesNotRefuseAll: the daemon refuses a whole set because of one bad grant.
func TestOneBadNameDoesNotRefuseAll(t *testing.T) {
	pod := testPod(nil, nil, "app!")
	for _, c := range []container{
		{id: "short", name: "app", pod: pod},
		{id: id(1), name: "A b", pod: pod},
		{id: id(1), name: "app", pod: &corev1.Pod{}},
	} {
		c.edited = true
		if got := c.grants(pod, classes.Decision{}, nil); got != nil {
			t.Errorf("%+v", got)
		}
	}
}

func TestBounded(t *testing.T) {
	var all []control.Grant
	for i := range maxGrants + 3 {
		all = append(all, control.Grant{ID: id(maxGrants - i + 10)})
	}
	all[0].Class = "latency" // the largest id
	got, dropped := bounded(all)
	if len(got) != maxGrants || dropped != 3 || got[0].Class != "latency" {
		t.Errorf("%d grants, %d dropped, first %+v", len(got), dropped, got[0])
	}
}
