// SPDX-License-Identifier: Apache-2.0

package identity

import (
	"errors"
	"strings"
	"testing"
)

const testPod = "3fd4bb8e-2a0c-4b47-9d0e-5e7a1c3f9b21"

var (
	testSlice  = "kubepods-besteffort-pod" + strings.ReplaceAll(testPod, "-", "_") + ".slice"
	kindSlice  = "kubelet-" + testSlice
	staticPod  = strings.Repeat("9c", 16)
	podSlices  = "/kubepods.slice/kubepods-besteffort.slice/" + testSlice
	otherSlice = "kubepods-pod" + strings.ReplaceAll(testPod, "3", "4") + ".slice"
)

func TestPodOf(t *testing.T) {
	for p, want := range map[string]Pod{
		"/":       {},
		"":        {},
		"/docker": {},
		podSlices: {UID: testPod},
		podSlices + "/cri-containerd-" + idA + ".scope":                                                 {testPod, idA},
		podSlices + "/crio-" + idA + ".scope/container":                                                 {testPod, idA},
		podSlices + "/crio-conmon-" + idA + ".scope":                                                    {UID: testPod},
		podSlices + "/other/" + idA:                                                                     {UID: testPod},
		"/kubepods/burstable/pod" + testPod + "/" + idA:                                                 {testPod, idA},
		"/kubepods/pod" + testPod + "/" + idA + "/init.scope":                                           {testPod, idA},
		"/kubepods/pod" + staticPod + "/" + idA:                                                         {staticPod, idA},
		"/kubepods.slice/kubepods-pod" + staticPod + ".slice/crio-" + idA + ".scope":                    {staticPod, idA},
		"/../../" + testSlice + "/cri-containerd-" + idB + ".scope":                                     {testPod, idB}, // seen from a container
		podSlices + "/cri-containerd-" + idA + ".scope/" + otherSlice + "/cri-containerd-" + idB:        {testPod, idA}, // a pod that runs containers
		"/system.slice/docker-" + idA + ".scope/kubelet/kubepods/pod" + testPod + "/" + idB:             {},             // a node in a container
		"/kubelet.slice/kubelet-kubepods.slice/" + kindSlice + "/cri-containerd-" + idA + ".scope":      {testPod, idA}, // kind
		"/kubepods/pod" + strings.ToUpper(testPod) + "/" + idA:                                          {},
		"/kubepods/pod" + testPod[:35] + "/" + idA:                                                      {},
		"/kubepods/xpod" + testPod + "/" + idA:                                                          {},
		"/lxc.payload.web/kubepods/pod" + testPod:                                                       {},
		"/kubepods/pod" + testPod + "/" + idA[:63]:                                                      {UID: testPod},
		"/kubepods/pod" + testPod + "/cri-containerd-" + idA + ".scope.bad":                             {UID: testPod},
		"/kubepods/pod" + strings.ReplaceAll(testPod, "-", "_") + "/" + idB + "/pod" + staticPod + "/x": {testPod, idB},
	} {
		if got := podOf(p); got != want {
			t.Errorf("podOf(%q) = %+v, want %+v", p, got, want)
		}
	}
}

func TestPodUID(t *testing.T) {
	for text, want := range map[string]string{
		testPod: testPod, strings.ToUpper(testPod): testPod, strings.ReplaceAll(testPod, "-", "_"): testPod, staticPod: staticPod,
		"": "", testPod + "x": "", "pod" + testPod: "", testPod[1:]: "", "*": "", strings.Repeat("a", 1000): "",
	} {
		if got := PodUID(text); got != want {
			t.Errorf("PodUID(%q) = %q", text, got)
		}
	}
}

// A name that a user may have chosen is no pod.
func TestPodByRoot(t *testing.T) {
	o := &observer{
		mounts: []cgroupMount{{"", "/cg"}, {"pids", "/pids"}},
		privilegedStats: func(dir string) (int, uint32, error) {
			switch {
			case strings.HasPrefix(dir, "/pids"):
				return 0, 0o755, nil
			case !strings.HasPrefix(dir, "/cg"):
				return 0, 0, errors.New("outside")
			case strings.Contains(dir, "user@1000.service"):
				return 1000, 0o755, nil
			}
			return 0, 0o755, nil
		},
	}
	chosen := "/user.slice/user@1000.service" + podSlices + "/cri-containerd-" + idA + ".scope"
	real := podSlices + "/cri-containerd-" + idB + ".scope"
	for _, test := range []struct {
		all  []hierarchy
		want Pod
	}{
		{[]hierarchy{{"", real}}, Pod{testPod, idB}},
		{[]hierarchy{{"", chosen}}, Pod{}},
		{[]hierarchy{{"", chosen}, {"pids", real}}, Pod{testPod, idB}},
		{[]hierarchy{{"", "/docker/" + idA}, {"pids", real}}, Pod{}}, // the container of identify
		{nil, Pod{}},
	} {
		if got := o.pod(test.all); got != test.want {
			t.Errorf("%v: %+v, want %+v", test.all, got, test.want)
		}
	}
	// A daemon in a container does not see the folders: there, only the kubelet's names are pods.
	scope := "/cri-containerd-" + idA + ".scope"
	for p, want := range map[string]Pod{
		"/../../" + testSlice + scope:                                         {testPod, idA},
		"/../../../kubepods-besteffort.slice/" + testSlice + scope:            {testPod, idA},
		"/../../../../kubepods/burstable/pod" + testPod + "/" + idA:           {testPod, idA},
		"/../../../kubelet.slice/kubelet-kubepods.slice/" + kindSlice + scope: {testPod, idA},
		"/../../user@1000.service/" + testSlice + scope:                       {},
		"/../../../../system.slice/runner.service" + podSlices + scope:        {},
		"/../../../../runner/kubepods/pod" + testPod + "/" + idA:              {},
		"/../../../kubepods-runner.slice/" + testSlice + scope:                {},
	} {
		if got := (&observer{}).pod([]hierarchy{{"", p}}); got != want {
			t.Errorf("%s: %+v, want %+v", p, got, want)
		}
		all := []hierarchy{{"", p}}
		if got := (&observer{mounts: []cgroupMount{{"", "/cg"}}}).pod(all); got != want { // with a mount that shows its own cgroup only
			t.Errorf("%s with a mount: %+v, want %+v", p, got, want)
		}
	}
}

// The containers of the daemon's own pod count as on the host, and no others.
func TestSiblings(t *testing.T) {
	own := podSlices + "/cri-containerd-" + idA + ".scope"
	for _, test := range []struct {
		own, other string
		inPod      bool
		want       bool
	}{
		{own, podSlices + "/cri-containerd-" + idB + ".scope", false, true},
		{own, podSlices + "/cri-containerd-" + idB + ".scope/" + idA, false, false}, // a container in the sibling
		{own, podSlices, false, false},
		{own, "/kubepods.slice/" + otherSlice + "/cri-containerd-" + idB + ".scope", true, false},
		{own, own + "/" + idB, false, false},
		{"/docker/" + idA, "/docker/" + idB, true, false},
		{"", "/docker/" + idB, true, false},
		{"", "/../cri-containerd-" + idB + ".scope", true, true}, // seen from a cgroup namespace
		{"", "/../cri-containerd-" + idB + ".scope", false, false},
		{"", "/../" + idB + "/" + idA, true, false},
		{"", "/../../" + testSlice + "/cri-containerd-" + idB + ".scope", true, false},
	} {
		o := &observer{container: test.own, inPod: test.inPod}
		got := o.identify(facts{hierarchies: []hierarchy{{"", test.other}}})
		if got.Root() != test.want {
			t.Errorf("daemon in %q: a process in %q is %+v, want %v", test.own, test.other, got, test.want)
		}
		if o.identify(facts{pid: 5, outerPID: 5, hierarchies: []hierarchy{{"", test.other}}}).Root() {
			t.Errorf("daemon in %q: a PID namespace in %q is trusted", test.own, test.other)
		}
	}
}

// FuzzPod checks that only well-formed names come out, whatever a user names cgroups.
func FuzzPod(f *testing.F) {
	f.Add(podSlices + "/cri-containerd-" + idA + ".scope")
	f.Add("/kubepods/pod" + staticPod + "/" + idB)
	f.Add("/../../pod" + testPod)
	f.Fuzz(func(t *testing.T, p string) {
		pod := podOf(p)
		if pod.UID == "" && pod.Container != "" || pod.UID != "" && PodUID(pod.UID) != pod.UID || pod.Container != "" && !IsContainerID(pod.Container) {
			t.Fatalf("%q: %+v", p, pod)
		}
		if pod.UID == "" {
			return
		}
		if outer, _ := containers(p); podOf(outer).UID != pod.UID {
			t.Fatalf("%q: pod %s is not the outermost container %q", p, pod.UID, outer)
		}
		if below := podOf(p + "/" + idA + "/pod" + testPod + "/" + idB); below.UID != pod.UID || pod.Container != "" && below.Container != pod.Container {
			t.Fatalf("%q: names below make it %+v", p, below)
		}
	})
}
