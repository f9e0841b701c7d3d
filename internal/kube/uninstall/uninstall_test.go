// SPDX-License-Identifier: Apache-2.0

package uninstall

import (
	"context"
	"encoding/json"
	"io/fs"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"xsched/internal/kube/gangs"
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

// TestCleanupEnds: a cleanup that stayed would remove the files of the next installation, so it ends after a
// failure and when the time is over, and it belongs to an object that goes with the uninstall.
func TestCleanupEnds(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	for name, fail := range map[string]http.HandlerFunc{
		"failure":  func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", http.StatusForbidden) },
		"time out": func(w http.ResponseWriter, _ *http.Request) { cancel(); http.Error(w, "no", http.StatusForbidden) },
	} {
		var set *appsv1.DaemonSet
		deleted := false
		mux := http.NewServeMux()
		sets := "/apis/apps/v1/namespaces/xsched-system/daemonsets"
		reply := func(w http.ResponseWriter, v any) {
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(v)
		}
		missing := func(w http.ResponseWriter) {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusNotFound)
			_ = json.NewEncoder(w).Encode(apierrors.NewNotFound(schema.GroupResource{}, "cleanup").Status())
		}
		mux.HandleFunc("GET /api/v1/namespaces/xsched-system/configmaps/owner", func(w http.ResponseWriter, _ *http.Request) {
			reply(w, map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": "owner", "uid": "u1"}})
		})
		mux.HandleFunc("POST "+sets, func(w http.ResponseWriter, r *http.Request) {
			set = &appsv1.DaemonSet{}
			if err := json.NewDecoder(r.Body).Decode(set); err != nil {
				t.Error(err)
			}
			reply(w, set)
		})
		mux.HandleFunc("DELETE "+sets+"/cleanup", func(w http.ResponseWriter, r *http.Request) {
			if set == nil || deleted {
				missing(w)
				return
			}
			deleted = true
			reply(w, metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusSuccess})
		})
		mux.HandleFunc("GET "+sets+"/cleanup", func(w http.ResponseWriter, r *http.Request) {
			if !deleted {
				fail(w, r)
				return
			}
			missing(w)
		})
		c := Cluster{
			Client: serve(t, mux), Namespace: "xsched-system", Owner: "owner", Log: slog.New(slog.DiscardHandler),
			Cleanup: &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Name: "cleanup"}, Spec: appsv1.DaemonSetSpec{Selector: &metav1.LabelSelector{}}},
		}
		if err := c.clean(ctx); err == nil {
			t.Errorf("%s: no error", name)
		}
		if !deleted {
			t.Errorf("%s: the cleanup stays", name)
		}
		if set == nil || len(set.OwnerReferences) != 1 || set.OwnerReferences[0].UID != "u1" {
			t.Errorf("%s: owners %+v", name, set)
		}
		ctx, cancel = context.WithCancel(t.Context())
	}
	cancel()
}

// TestForeignLeases: the namespace of the release may have leases of other programs, such as the scheduler's.
func TestForeignLeases(t *testing.T) {
	const path = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases"
	there := map[string]labels.Set{"kube-scheduler": nil, "gang-1": {gangs.Label: "true"}, "other": {"app": "gang"}, "gang-2": {gangs.Label: "true"}}
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+path, func(w http.ResponseWriter, r *http.Request) {
		selector, err := labels.Parse(r.URL.Query().Get("labelSelector"))
		if err != nil {
			t.Error(err)
		}
		list := coordinationv1.LeaseList{TypeMeta: metav1.TypeMeta{APIVersion: "coordination.k8s.io/v1", Kind: "LeaseList"}}
		for name, of := range there {
			if selector.Matches(of) {
				list.Items = append(list.Items, coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: of}})
			}
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(list)
	})
	mux.HandleFunc("DELETE "+path+"/{name}", func(w http.ResponseWriter, r *http.Request) {
		delete(there, r.PathValue("name"))
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusSuccess})
	})
	c := Cluster{Client: serve(t, mux), Namespace: "kube-system", Log: slog.New(slog.DiscardHandler)}
	if err := c.deleteLeases(t.Context()); err != nil {
		t.Fatal(err)
	}
	if left := slices.Sorted(maps.Keys(there)); !slices.Equal(left, []string{"kube-scheduler", "other"}) {
		t.Errorf("left %q", left)
	}
}

// serve returns a client of an API server.
func serve(t *testing.T, h http.Handler) kubernetes.Interface {
	t.Helper()
	server := httptest.NewServer(h)
	t.Cleanup(server.Close)
	client, err := kubernetes.NewForConfig(&rest.Config{Host: server.URL, QPS: -1, ContentConfig: rest.ContentConfig{ContentType: "application/json"}})
	if err != nil {
		t.Fatal(err)
	}
	return client
}
