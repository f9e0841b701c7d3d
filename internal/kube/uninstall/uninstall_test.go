// SPDX-License-Identifier: Apache-2.0

package uninstall

import (
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestRemoveFiles(t *testing.T) {
	root := t.TempDir()
	outside := filepath.Join(t.TempDir(), "kept")
	write := func(path string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(outside)
	for _, name := range []string{
		"cdi/gpu.xsched.dev-claim_1.json", "cdi/nvidia.yaml", "cdi/gpu.xsched.development.json",
		"kubelet/plugins/gpu.xsched.dev/dra.sock", "kubelet/plugins/gpu.example.com/dra.sock",
		"kubelet/plugins_registry/gpu.xsched.dev-reg.sock", "kubelet/plugins_registry/gpu.example.com-reg.sock",
		"run/xsched/client/xsched.sock", "run/other/pid", "lib/xsched/state.json",
	} {
		write(filepath.Join(root, name))
	}
	if err := os.Symlink(filepath.Dir(outside), filepath.Join(root, "lib/xsched/link")); err != nil {
		t.Fatal(err)
	}
	files := Files{
		CDI: filepath.Join(root, "cdi"), Kubelet: filepath.Join(root, "kubelet"),
		Whole: []string{filepath.Join(root, "run/xsched"), filepath.Join(root, "lib/xsched"), filepath.Join(root, "none")},
	}
	for _, want := range []int{5, 0} { // the second time nothing is left
		if n, err := files.Remove(); n != want || err != nil {
			t.Errorf("removed %d, %v; want %d", n, err, want)
		}
	}
	var left []string
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			relative, _ := filepath.Rel(root, path)
			left = append(left, relative)
		}
		return err
	})
	want := []string{"cdi/gpu.xsched.development.json", "cdi/nvidia.yaml", "kubelet/plugins/gpu.example.com/dra.sock", "kubelet/plugins_registry/gpu.example.com-reg.sock", "run/other/pid"}
	if err != nil || !slices.Equal(left, want) {
		t.Errorf("left %q, %v; want %q", left, err, want)
	}
	if _, err := os.Stat(outside); err != nil {
		t.Errorf("a link was followed: %v", err)
	}
	if n, err := (&Files{}).Remove(); n != 0 || err != nil {
		t.Errorf("without folders: removed %d, %v", n, err)
	}
}

func TestInUse(t *testing.T) {
	claim := func(name, driver string, allocated bool, pods int) resourcev1.ResourceClaim {
		c := resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: name}}
		if allocated {
			c.Status.Allocation = &resourcev1.AllocationResult{Devices: resourcev1.DeviceAllocationResult{
				Results: []resourcev1.DeviceRequestAllocationResult{{Driver: "other.example.com"}, {Driver: driver}},
			}}
		}
		c.Status.ReservedFor = make([]resourcev1.ResourceClaimConsumerReference, pods)
		return c
	}
	got := InUse([]resourcev1.ResourceClaim{
		claim("used-too", "gpu.xsched.dev", true, 2), claim("used", "gpu.xsched.dev", true, 1),
		claim("idle", "gpu.xsched.dev", true, 0), claim("pending", "gpu.xsched.dev", false, 0), claim("foreign", "gpu.example.com", true, 1),
	})
	if want := []string{"team/used", "team/used-too"}; !slices.Equal(got, want) {
		t.Errorf("in use: %q, want %q", got, want)
	}
}

func TestClean(t *testing.T) {
	set := func(generation, observed int64, desired, ready int32) *appsv1.DaemonSet {
		return &appsv1.DaemonSet{
			ObjectMeta: metav1.ObjectMeta{Generation: generation},
			Status:     appsv1.DaemonSetStatus{ObservedGeneration: observed, DesiredNumberScheduled: desired, NumberReady: ready},
		}
	}
	for _, c := range []struct {
		set  *appsv1.DaemonSet
		want bool
	}{
		{set(1, 0, 0, 0), false}, // the controller has not seen it
		{set(1, 1, 3, 2), false},
		{set(1, 1, 3, 3), true},
		{set(1, 1, 0, 0), true}, // no node matches
		{set(2, 1, 3, 3), false},
	} {
		if got := Clean(c.set); got != c.want {
			t.Errorf("%+v of generation %d: %v", c.set.Status, c.set.Generation, got)
		}
	}
}
