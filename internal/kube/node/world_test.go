// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"xsched/internal/control"
	"xsched/internal/kube/cdi"
	"xsched/internal/kube/cluster"
	"xsched/internal/kube/edits"
)

// daemon stands in for the scheduling daemon.
type daemon struct {
	mu      sync.Mutex
	down    bool
	hangs   bool // takes requests and does not answer
	started int64
	devices []control.Device
	stats   control.Stats
	journal control.Journal
	grants  []control.Grant
	sets    int
}

var errDown = errors.New("connection refused")

func (d *daemon) answer(f func()) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.down {
		return errDown
	}
	f()
	return nil
}

func (d *daemon) Version(ctx context.Context) (v control.Version, err error) {
	if d.hangs {
		<-ctx.Done()
		return v, ctx.Err()
	}
	err = d.answer(func() { v = control.Version{Version: "1.0.0", Dir: "/run/xsched", StartedNS: d.started} })
	return v, err
}

func (d *daemon) Devices(context.Context) (v control.Devices, err error) {
	err = d.answer(func() { v.Devices = append(v.Devices, d.devices...) })
	return v, err
}

func (d *daemon) Stats(context.Context) (v control.Stats, err error) {
	err = d.answer(func() { v = d.stats })
	return v, err
}

func (d *daemon) Journal(_ context.Context, r control.JournalRequest) (v control.Journal, err error) {
	err = d.answer(func() {
		v.Next = d.journal.Next
		for _, e := range d.journal.Entries {
			if e.Seq > r.Since {
				v.Entries = append(v.Entries, e)
			}
		}
	})
	return v, err
}

// SetGrants refuses what the daemon refuses.
func (d *daemon) SetGrants(_ context.Context, r control.GrantsRequest) (reply control.GrantsReply, err error) {
	if err := r.Check(); err != nil {
		return reply, err
	}
	return reply, d.answer(func() { d.grants, d.sets = r.Grants, d.sets+1 })
}

func (d *daemon) set(f func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	f()
}

// podsGranted returns the priorities of pods with a grant.
func (d *daemon) podsGranted(t *testing.T) map[string]int32 {
	t.Helper()
	d.mu.Lock()
	defer d.mu.Unlock()
	out := map[string]int32{}
	for _, g := range d.grants {
		if _, twice := out[g.Pod]; twice {
			t.Errorf("pod %s has two grants", g.Pod)
		}
		out[g.Pod] = *g.Priority
	}
	return out
}

// notes records events.
type notes struct {
	mu    sync.Mutex
	lines []string
}

func (n *notes) Eventf(object runtime.Object, kind, reason, format string, args ...any) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.lines = append(n.lines, fmt.Sprintf("%s %s %s: ", object.GetObjectKind().GroupVersionKind().Kind, kind, reason)+fmt.Sprintf(format, args...))
}

// uid makes the UID of a claim or a pod.
func uid(kind, number int) types.UID {
	return types.UID(fmt.Sprintf("%08d-0000-4000-8000-%012d", kind, number))
}

const (
	claimKind = iota + 1
	podKind
)

// class and own are configurations of a class and of a claim.
func class(body string) resourceapi.DeviceAllocationConfiguration {
	return resourceapi.DeviceAllocationConfiguration{Source: resourceapi.AllocationConfigSourceClass, DeviceConfiguration: opaque(body)}
}

func own(body string, requests ...string) resourceapi.DeviceAllocationConfiguration {
	return resourceapi.DeviceAllocationConfiguration{Source: resourceapi.AllocationConfigSourceClaim, Requests: requests, DeviceConfiguration: opaque(body)}
}

func opaque(body string) resourceapi.DeviceConfiguration {
	return resourceapi.DeviceConfiguration{Opaque: &resourceapi.OpaqueDeviceConfiguration{
		Driver: cluster.Driver, Parameters: runtime.RawExtension{Raw: []byte(`{"apiVersion":"gpu.xsched.dev/v1alpha1","kind":"GpuParameters",` + body + `}`)},
	}}
}

// allocated returns a claim of pod number with one request per device.
func allocated(number int, devices []string, share int64, configs ...resourceapi.DeviceAllocationConfiguration) *resourceapi.ResourceClaim {
	c := &resourceapi.ResourceClaim{
		TypeMeta:   metav1.TypeMeta{APIVersion: "resource.k8s.io/v1", Kind: "ResourceClaim"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: fmt.Sprintf("claim-%d", number), UID: uid(claimKind, number)},
	}
	allocation := &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{Config: configs}}
	for i, d := range devices {
		request, id := fmt.Sprintf("gpu%d", i), types.UID("share")
		c.Spec.Devices.Requests = append(c.Spec.Devices.Requests, resourceapi.DeviceRequest{Name: request, Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: "gpu-latency"}})
		allocation.Devices.Results = append(allocation.Devices.Results, resourceapi.DeviceRequestAllocationResult{
			Request: request, Driver: cluster.Driver, Pool: "worker", Device: d, ShareID: &id,
			ConsumedCapacity: map[resourceapi.QualifiedName]resource.Quantity{Share: *resource.NewQuantity(share, resource.DecimalSI)},
		})
	}
	c.Status.Allocation = allocation
	c.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: fmt.Sprintf("pod-%d", number), UID: uid(podKind, number)}}
	return c
}

// folders are the state of a node that outlives the plugin.
type folders struct {
	data, cdi string
	daemon    *daemon
}

func newFolders(t *testing.T) *folders {
	t.Helper()
	root := t.TempDir()
	f := &folders{data: filepath.Join(root, "data"), cdi: filepath.Join(root, "cdi"), daemon: &daemon{started: 1}}
	if err := os.Mkdir(f.data, 0o755); err != nil {
		t.Fatal(err)
	}
	return f
}

// gpu0 and gpu1 are the GPUs of a node.
const gpu0, gpu1 = "gpu-0000-01-00-0", "gpu-0000-02-00-0"

// twoGPUs are the daemon's GPUs with these names. The second one has a CDI device of its vendor.
func twoGPUs() []control.Device {
	access := func(n int) *control.DeviceAccess {
		return &control.DeviceAccess{
			Nodes: []string{"/dev/ctl", fmt.Sprintf("/dev/gpu%d", n)}, Variables: map[string]string{"GPUS": fmt.Sprintf("uuid-%d", n)},
			CDI: []string{fmt.Sprintf("vendor.com/gpu=uuid-%d", n)},
		}
	}
	return []control.Device{
		{ID: "0000:01:00.0", MaxLevel: 3, Probed: true, Access: access(0)},
		{ID: "0000:02:00.0", MaxLevel: 3, Probed: true, Access: access(1)},
	}
}

func (f *folders) surroundings(context.Context) (surroundings, error) {
	return surroundings{edits.New("/lib/libxsched.so", "/run/xsched/client"), accesses(twoGPUs(), cdi.Find(f.cdi))}, nil
}

// store starts a store on the folders, as a new process does.
func (f *folders) store(t *testing.T, after func(string) error) *store {
	t.Helper()
	s := &store{
		file: filepath.Join(f.data, "checkpoint.json"), specs: cdi.Dir{Path: f.cdi, Prefix: cluster.Driver + "-"}, after: after,
		surroundings: f.surroundings,
		send: func(ctx context.Context, grants []control.Grant) error {
			_, err := f.daemon.SetGrants(ctx, control.GrantsRequest{Source: grantSource, Grants: grants})
			return err
		},
	}
	if err := s.open(); err != nil {
		t.Fatal(err)
	}
	return s
}

// specs lists the files in the folder of CDI specifications.
func (f *folders) specs(t *testing.T) []string {
	t.Helper()
	entries, err := os.ReadDir(f.cdi)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	var out []string
	for _, e := range entries {
		out = append(out, strings.TrimSuffix(strings.TrimPrefix(e.Name(), cluster.Driver+"-"), ".json"))
	}
	return out
}

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }
