// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	"xsched/internal/control"
	"xsched/internal/embedded"
	"xsched/internal/kube/edits"
)

// published keeps what was published.
type published struct {
	times   int
	devices []resourceapi.Device
}

func (p *published) PublishResources(_ context.Context, r resourceslice.DriverResources) error {
	p.times, p.devices = p.times+1, nil
	for _, s := range r.Pools["worker"].Slices {
		p.devices = append(p.devices, s.Devices...)
	}
	return nil
}

// taintsOf lists "device taint" without the common parts.
func (p *published) taintsOf() []string {
	out := []string{}
	for _, d := range p.devices {
		for _, taint := range d.Taints {
			out = append(out, strings.TrimPrefix(d.Name, "gpu-0000-")+" "+strings.TrimPrefix(taint.Key, "gpu.xsched.dev/"))
		}
	}
	return out
}

// apiServer answers requests of a client.
func apiServer(t *testing.T, handler http.HandlerFunc) kubernetes.Interface {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	client, err := kubernetes.NewForConfig(&rest.Config{Host: server.URL, QPS: -1})
	if err != nil {
		t.Fatal(err)
	}
	return client
}

func newNode(t *testing.T, f *folders, api kubernetes.Interface) *Node {
	t.Helper()
	n, err := New(t.Context(), Options{Name: "worker", Data: f.data, CDI: f.cdi, Log: quiet()}, f.daemon, api)
	if err != nil {
		t.Fatal(err)
	}
	n.store.surroundings = f.surroundings
	return n
}

// bindable marks a GPU that a container can be bound to.
var bindable = &control.DeviceAccess{Nodes: []string{"/dev/gpu"}}

func TestLook(t *testing.T) {
	f, to, ctx := newFolders(t), &published{}, t.Context()
	f.daemon.devices = []control.Device{{ID: "0000:02:00.0", Driver: "d", MaxLevel: 3, Probed: true, Access: bindable}, {ID: "0000:01:00.0", Driver: "d", Name: "Model X", MaxLevel: 3, Probed: true, Access: bindable}}
	n := newNode(t, f, apiServer(t, http.NotFound))
	n.look(ctx, to)
	if len(to.devices) != 2 || to.devices[0].Name != "gpu-0000-01-00-0" || to.times != 1 {
		t.Fatalf("published %+v, %d times", to.devices, to.times)
	}
	share := to.devices[0].Capacity[Share]
	if d := to.devices[0]; !*d.AllowMultipleAllocations || *d.Attributes["model"].StringValue != "Model X" || *d.Attributes["maxLevel"].IntValue != 3 ||
		*d.Attributes["resource.kubernetes.io/pciBusID"].StringValue != "0000:01:00.0" || share.Value.Value() != 100 || !share.RequestPolicy.Default.IsZero() {
		t.Errorf("%+v", d)
	}
	n.look(ctx, to)
	if to.times != 1 {
		t.Error("published again without a change")
	}
	n.looks.sent = n.looks.sent.Add(-publishAgain)
	n.look(ctx, to)
	if to.times != 2 {
		t.Error("a slice that the kubelet deleted is not published again")
	}

	f.daemon.set(func() {
		f.daemon.stats.Targets = []control.TargetStats{{Device: "0000:01:00.0", StuckSinceNS: 5}}
		f.daemon.devices[0].MaxLevel = 1
	})
	n.look(ctx, to)
	if got := to.taintsOf(); !slices.Equal(got, []string{"01-00-0 stuck", "02-00-0 level-1"}) {
		t.Errorf("taints %v", got)
	}
	f.daemon.set(func() { f.daemon.devices[0].LevelReason = "MPS: the channels belong to the MPS server" })
	n.look(ctx, to)
	if got := to.taintsOf(); !slices.Contains(got, "02-00-0 mps") {
		t.Errorf("taints %v", got)
	}
	f.daemon.set(func() {
		f.daemon.stats.Targets, f.daemon.devices[0].MaxLevel, f.daemon.devices[0].LevelReason = nil, 3, ""
	})
	n.look(ctx, to)
	if len(to.taintsOf()) == 0 {
		t.Error("taints went at once")
	}
	for range clearAfter {
		n.look(ctx, to)
	}
	if got := to.taintsOf(); len(got) != 0 {
		t.Errorf("taints stay: %v", got)
	}
}

func TestDaemonGoesAndComes(t *testing.T) {
	f, to, ctx := newFolders(t), &published{}, t.Context()
	f.daemon.devices = []control.Device{{ID: "0000:01:00.0", MaxLevel: 3, Access: bindable}}
	n := newNode(t, f, apiServer(t, http.NotFound))
	if err := n.store.prepare(ctx, records(t, 1)); err != nil {
		t.Fatal(err)
	}
	n.look(ctx, to)
	f.daemon.set(func() { f.daemon.down = true })
	for range downAfter - 1 {
		n.look(ctx, to)
	}
	if len(to.taintsOf()) != 0 {
		t.Error("tainted during a short restart")
	}
	n.look(ctx, to)
	if got := to.taintsOf(); !slices.Equal(got, []string{"01-00-0 daemon-down"}) {
		t.Errorf("taints %v", got)
	}
	// A daemon that lost its state gets the grants again.
	f.daemon.set(func() { f.daemon.down, f.daemon.started, f.daemon.grants = false, 2, nil })
	n.look(ctx, to)
	if len(to.taintsOf()) != 0 {
		t.Errorf("taints stay: %v", to.taintsOf())
	}
	f.consistent(t, n.store, 1)
	sets := f.daemon.sets
	n.look(ctx, to)
	if f.daemon.sets != sets {
		t.Error("grants sent again without a reason")
	}
}

// TestStartWithoutDaemon: GPUs that an earlier run published get the taint, too, if the daemon is gone and if
// it hangs.
func TestStartWithoutDaemon(t *testing.T) {
	t.Run("gone", func(t *testing.T) { testStartWithoutDaemon(t, func(d *daemon) { d.down = true }) })
	t.Run("hangs", func(t *testing.T) { testStartWithoutDaemon(t, func(d *daemon) { d.hangs = true }) })
}

func testStartWithoutDaemon(t *testing.T, fail func(*daemon)) {
	f, to := newFolders(t), &published{}
	fail(f.daemon)
	asked := ""
	n := newNode(t, f, apiServer(t, func(w http.ResponseWriter, r *http.Request) {
		asked = r.URL.Query().Get("fieldSelector")
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{"kind":"ResourceSliceList","apiVersion":"resource.k8s.io/v1","items":[{"spec":{"pool":{"generation":2},"devices":[{"name":"gpu-0000-09-00-0"}]}},{"spec":{"pool":{"generation":1},"devices":[{"name":"gpu-0000-08-00-0"}]}}]}`))
	}))
	n.looks.limit = time.Millisecond
	for range downAfter {
		n.look(t.Context(), to)
	}
	if got := to.taintsOf(); !slices.Equal(got, []string{"09-00-0 daemon-down"}) || asked != "spec.nodeName=worker,spec.driver=gpu.xsched.dev" {
		t.Errorf("taints %v, asked for %q", got, asked)
	}
}

func TestResources(t *testing.T) {
	many := make([]resourceapi.Device, 2*maxDevices+1)
	if s := resources("worker", many).Pools["worker"].Slices; len(s) != 3 || len(s[0].Devices) != maxDevices {
		t.Errorf("%d slices", len(s))
	}
	if s := resources("worker", nil).Pools["worker"].Slices; len(s) != 1 {
		t.Errorf("%d slices of an empty pool", len(s))
	}
	d := places{}.gpus([]control.Device{{ID: "0000:01:00.0", Name: strings.Repeat("ü", 64), Access: bindable}}, capacities{resource.MustParse("80Gi"), 16})[0]
	if m := d.Capacity[Memory].Value; m.String() != "80Gi" {
		t.Errorf("memory %s", m.String())
	}
	if name := *d.Attributes["model"].StringValue; len(name) != 64 {
		t.Errorf("model has %d bytes", len(name))
	}
}

func TestTenantEdits(t *testing.T) {
	libraries := filepath.Join(t.TempDir(), "lib")
	for platform, want := range map[string]string{"nvidia": "XSCHED_VGPU_SOCKET=/run/xsched-device/vgpu.sock", "amd": "XSCHED_VKFD_SOCKET=/run/xsched-device/kfd.sock"} {
		e, err := tenantEdits(libraries, &control.Version{Dir: "/run/xsched", Virtual: true, Platform: platform})
		if errors.Is(err, embedded.ErrMissing) {
			t.Skip(err)
		}
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Contains(e.Env, want) || !slices.Contains(e.Env, "XSCHED_DIR=/run/xsched") || strings.Count(e.Preload, ":") != 1 || len(e.Mounts) < 5 ||
			!slices.ContainsFunc(e.Mounts, func(m edits.Mount) bool { return m.Container == "/usr/lib/xsched/virtual/tenant" }) {
			t.Errorf("%s: %+v", platform, e)
		}
	}
	real, err := tenantEdits(libraries, &control.Version{Dir: "/run/xsched"})
	if err != nil || strings.Contains(fmt.Sprint(real), "virtual") {
		t.Errorf("of a real GPU: %+v %v", real, err)
	}
	if _, err := tenantEdits(libraries, &control.Version{Virtual: true, Platform: "tpu"}); err == nil || !strings.Contains(err.Error(), `"tpu"`) {
		t.Errorf("unknown platform: %v", err)
	}
}
