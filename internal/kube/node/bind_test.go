// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"xsched/internal/control"
	"xsched/internal/kube/cdi"
	"xsched/internal/kube/edits"
)

// prepared prepares a claim of devices and returns its specification and record.
func (f *folders) prepared(t *testing.T, s *store, number int, devices ...string) (cdi.Spec, claimRecord) {
	t.Helper()
	claim := allocated(number, devices, 0)
	r, err := readClaim(claim)
	if err != nil {
		t.Fatal(err)
	}
	claims := map[types.UID]claimRecord{claim.UID: r}
	if err := s.prepare(t.Context(), claims); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(f.cdi, "gpu.xsched.dev-"+string(claim.UID)+".json"))
	if err != nil {
		t.Fatal(err)
	}
	var spec cdi.Spec
	if err := json.Unmarshal(text, &spec); err != nil {
		t.Fatal(err)
	}
	return spec, claims[claim.UID]
}

// TestBound: the edits of a claim give its containers the device files and the variable of its GPUs, and of no
// other.
func TestBound(t *testing.T) {
	f := newFolders(t)
	s := f.store(t, nil)
	for n, c := range []struct {
		devices []string
		files   []string // of each device
		gpus    string
	}{
		{[]string{gpu0}, []string{"/dev/ctl /dev/gpu0"}, "GPUS=uuid-0"},
		{[]string{gpu1}, []string{"/dev/ctl /dev/gpu1"}, "GPUS=uuid-1"},
		{[]string{gpu1, gpu0}, []string{"/dev/ctl /dev/gpu1", "/dev/ctl /dev/gpu0"}, "GPUS=uuid-0,uuid-1"},
	} {
		spec, r := f.prepared(t, s, n+1, c.devices...)
		for i, d := range spec.Devices {
			var files []string
			for _, node := range d.Edits.DeviceNodes {
				files = append(files, node.Path)
			}
			if strings.Join(files, " ") != c.files[i] || !slices.Contains(d.Edits.Env, c.gpus) {
				t.Errorf("claim of %v: %+v", c.devices, d.Edits)
			}
		}
		if ids := results(uid(claimKind, n+1), &r)[0].CDIDeviceIDs; len(ids) != 1 {
			t.Errorf("CDI devices %v", ids)
		}
	}
	n := &Node{store: s}
	name := func(n, i int) string { return deviceName(string(uid(claimKind, n)), i) }
	for _, c := range []struct {
		namespace string
		devices   []string
		want      map[string]string
	}{
		{"team", []string{name(1, 0), name(2, 0)}, map[string]string{"GPUS": "uuid-0,uuid-1"}},
		{"team", []string{name(3, 1)}, map[string]string{"GPUS": "uuid-0"}}, // one request of a claim
		{"other", []string{name(1, 0)}, map[string]string{}},
	} {
		if got := n.ClaimVariables(c.namespace, c.devices); !maps.Equal(got, c.want) {
			t.Errorf("%v in %s: %v", c.devices, c.namespace, got)
		}
	}
}

// TestVendorDevice: a CDI device of the vendor's tools replaces our own device files and variables.
func TestVendorDevice(t *testing.T) {
	f := newFolders(t)
	if err := os.MkdirAll(f.cdi, 0o755); err != nil {
		t.Fatal(err)
	}
	text := "cdiVersion: 0.5.0\nkind: vendor.com/gpu\ndevices:\n- name: all\n- name: uuid-1\n  containerEdits:\n    deviceNodes:\n    - path: /dev/gpu1\n"
	for name, text := range map[string]string{"vendor.yaml": text, "damaged.yaml": "{", "other.txt": text} {
		if err := os.WriteFile(filepath.Join(f.cdi, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	s := f.store(t, nil)
	spec, r := f.prepared(t, s, 1, gpu0, gpu1)
	all := results(uid(claimKind, 1), &r)
	if len(all[0].CDIDeviceIDs) != 1 || len(all[1].CDIDeviceIDs) != 2 || all[1].CDIDeviceIDs[1] != "vendor.com/gpu=uuid-1" {
		t.Errorf("CDI devices %v and %v", all[0].CDIDeviceIDs, all[1].CDIDeviceIDs)
	}
	if e := spec.Devices[1].Edits; len(e.DeviceNodes) != 0 || slices.ContainsFunc(e.Env, func(v string) bool { return strings.HasPrefix(v, "GPUS=") }) {
		t.Errorf("our own edits are there too: %+v", e)
	}
}

// TestGoneGPU: a claim of a GPU that the daemon no longer lists is not prepared.
func TestGoneGPU(t *testing.T) {
	f := newFolders(t)
	r, err := readClaim(allocated(1, []string{"gpu-0000-09-00-0"}, 0))
	if err != nil {
		t.Fatal(err)
	}
	err = f.store(t, nil).prepare(t.Context(), map[types.UID]claimRecord{uid(claimKind, 1): r})
	if err == nil || !strings.Contains(err.Error(), "gpu-0000-09-00-0 is gone") || len(f.specs(t)) != 0 {
		t.Errorf("%v, specifications %v", err, f.specs(t))
	}
}

// TestDividedGPU: a GPU that is divided into instances gets a taint and no claim, also none that tolerates every
// taint. The GPU next to it has room as if it were the only one. Claims from before the division keep their GPU.
func TestDividedGPU(t *testing.T) {
	f, to, ctx := newFolders(t), &published{}, t.Context()
	f.daemon.devices = twoGPUs()
	n := newNode(t, f, apiServer(t, http.NotFound))
	n.store.surroundings = func(context.Context) (surroundings, error) {
		return surroundings{edits.New("/lib/libxsched.so", "/run/xsched/client"), accesses(f.daemon.devices, nil)}, nil
	}
	prepare := func(number int, device string) error {
		claim := allocated(number, []string{device}, 0)
		out, err := n.plugin.PrepareResourceClaims(ctx, []*resourceapi.ResourceClaim{claim})
		return errors.Join(err, out[claim.UID].Err)
	}
	if err := prepare(1, gpu0); err != nil {
		t.Fatal(err)
	}
	f.daemon.set(func() { f.daemon.devices[0].MIG = true })
	n.look(ctx, to)
	if got := to.taintsOf(); !slices.Equal(got, []string{"01-00-0 partitioned"}) {
		t.Errorf("taints %v", got)
	}
	if err := prepare(2, gpu0); err == nil || !strings.Contains(err.Error(), gpu0+" is gone, or divided") {
		t.Errorf("claim of the divided GPU: %v", err)
	}
	for number := range 3 {
		n.look(ctx, to)
		for _, d := range to.devices {
			room := d.Capacity[Tenants]
			if len(d.Taints) == 0 && room.Value.Value() != int64(number+1) {
				t.Errorf("with %d claims %s has room for %s", number, d.Name, room.Value.String())
			}
		}
		if err := prepare(number+3, gpu1); err != nil {
			t.Error(err)
		}
	}
	if err := n.store.repair(ctx); err != nil {
		t.Error(err)
	}
	if got := f.specs(t); len(got) != 4 {
		t.Errorf("specifications %v", got)
	}
	f.daemon.set(func() { f.daemon.devices[0].MIG = false })
	for range clearAfter {
		n.look(ctx, to)
	}
	if err := prepare(2, gpu0); err != nil || len(to.taintsOf()) != 0 {
		t.Errorf("after the division: %v, taints %v", err, to.taintsOf())
	}
}

// TestMixedGPUs: a claim of GPUs of two vendors gets the device files of both, each variable with the GPUs of its
// own vendor, and a grant of both. Other kinds of the node have room by their own claims only.
func TestMixedGPUs(t *testing.T) {
	f, to, ctx := newFolders(t), &published{}, t.Context()
	f.daemon.devices = twoGPUs()
	for i := range f.daemon.devices {
		f.daemon.devices[i].Driver, f.daemon.devices[i].Name = "570.1", "A"
	}
	for i, id := range []string{"0000:03:00.0", "0000:04:00.0"} {
		f.daemon.devices = append(f.daemon.devices, control.Device{
			ID: id, Driver: "6.12", Name: "B", MaxLevel: 3, Probed: true, MemoryBytes: 192 << 30,
			Access: &control.DeviceAccess{Nodes: []string{fmt.Sprintf("/dev/dri/renderD%d", 128+i), "/dev/kfd"}},
		})
	}
	n := newNode(t, f, apiServer(t, http.NotFound))
	n.options.Memory = resource.MustParse("80Gi")
	n.store.surroundings = func(context.Context) (surroundings, error) {
		return surroundings{edits.New("/lib/libxsched.so", "/run/xsched/client"), accesses(f.daemon.devices, nil)}, nil
	}
	const gpu2 = "gpu-0000-03-00-0"
	spec, _ := f.prepared(t, n.store, 1, gpu0, gpu1, gpu2)
	var files []string
	for _, d := range spec.Devices {
		for _, node := range d.Edits.DeviceNodes {
			files = append(files, node.Path)
		}
	}
	if want := "/dev/ctl /dev/gpu0 /dev/ctl /dev/gpu1 /dev/dri/renderD128 /dev/kfd"; strings.Join(files, " ") != want {
		t.Errorf("device files %v", files)
	}
	for i, want := range []bool{true, true, false} {
		if got := slices.Contains(spec.Devices[i].Edits.Env, "GPUS=uuid-0,uuid-1"); got != want {
			t.Errorf("device %d: %v", i, spec.Devices[i].Edits.Env)
		}
	}
	if g := f.daemon.grants; len(g) != 1 || !slices.Equal(g[0].Devices, []string{"0000:01:00.0", "0000:02:00.0", "0000:03:00.0"}) {
		t.Errorf("grants %+v", g)
	}
	n.look(ctx, to)
	got := map[string]string{}
	for _, d := range to.devices {
		room, memory := d.Capacity[Tenants], d.Capacity[Memory]
		got[d.Name] = room.Value.String() + " " + memory.Value.String()
	}
	want := map[string]string{gpu0: "2 80Gi", gpu1: "2 80Gi", gpu2: "1 192Gi", "gpu-0000-04-00-0": "1 192Gi"}
	if !maps.Equal(got, want) {
		t.Errorf("room and memory %v, want %v", got, want)
	}
}

func TestAddress(t *testing.T) {
	for name, want := range map[string]string{
		"gpu-0000-01-00-0": "0000:01:00.0", "gpu-10de-c1-1f-7": "10de:c1:1f.7", DeviceName("0001:0A:00.0"): "0001:0a:00.0",
		"gpu-0": "", "gpu-0000-01-00": "", "0000-01-00-0": "", "gpu-0000-01-00-0-1": "", "": "",
	} {
		if got := address(name); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
}
