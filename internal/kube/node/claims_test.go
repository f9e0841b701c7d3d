// SPDX-License-Identifier: Apache-2.0

package node

import (
	"slices"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"xsched/internal/kube/edits"
)

func TestReadClaim(t *testing.T) {
	latency := class(`"priority":10,"latencyTarget":"20ms","share":40`)
	other := class(`"priority":200`)
	other.Opaque.Driver = "gpu.example.com"
	for _, c := range []struct {
		name     string
		configs  []resourceapi.DeviceAllocationConfiguration
		reserved int64
		priority int32
		share    int // 0: none
		err      string
	}{
		{"no parameters", nil, 0, -10, 0, ""},
		{"class", []resourceapi.DeviceAllocationConfiguration{latency}, 0, 10, 40, ""},
		{"reserved share", []resourceapi.DeviceAllocationConfiguration{latency}, 30, 10, 30, ""},
		{"claim lowers", []resourceapi.DeviceAllocationConfiguration{latency, own(`"priority":1`)}, 0, 1, 40, ""},
		{"claim raises", []resourceapi.DeviceAllocationConfiguration{latency, own(`"priority":11`)}, 0, 0, 0, "above the 10"},
		{"of another request", []resourceapi.DeviceAllocationConfiguration{latency, own(`"priority":11`, "gpu1")}, 0, 10, 40, ""},
		{"of this request", []resourceapi.DeviceAllocationConfiguration{latency, own(`"priority":2`, "gpu0")}, 0, 2, 40, ""},
		{"of another driver", []resourceapi.DeviceAllocationConfiguration{other}, 0, -10, 0, ""},
		{"bad claim", []resourceapi.DeviceAllocationConfiguration{own(`"speed":1`)}, 0, 0, 0, `unknown field "speed"; `},
		{"bad class", []resourceapi.DeviceAllocationConfiguration{class(`"level":9`)}, 0, 0, 0, "device class: level 9 is out of range; "},
	} {
		r, err := readClaim(allocated(1, []string{gpu0}, c.reserved, c.configs...))
		if c.err != "" {
			if err == nil || !strings.Contains(err.Error(), c.err) || len(r.Pods) != 1 {
				t.Errorf("%s: %v (pods %v), want %q", c.name, err, r.Pods, c.err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		state := checkpoint{Claims: map[types.UID]claimRecord{uid(claimKind, 1): r}}
		all := state.grants()
		if len(all) != 1 || *all[0].Priority != c.priority || all[0].Class != "gpu-latency" || all[0].PodUID != string(uid(podKind, 1)) || all[0].Namespace != "team" {
			t.Errorf("%s: %+v", c.name, all)
			continue
		}
		share := 0
		if u := all[0].Utilization; u != nil {
			share = *u
		}
		if share != c.share {
			t.Errorf("%s: share %d, want %d", c.name, share, c.share)
		}
	}
}

// TestClaimedMemory: what a claim requests limits its programs; the default part does not, and of several claims
// of a pod the lowest counts.
func TestClaimedMemory(t *testing.T) {
	const gib = 1 << 30
	claim := func(number int, requested bool, bytes int64) claimRecord {
		c := allocated(number, []string{gpu0}, 0, class(`"priority":3`))
		c.Status.Allocation.Devices.Results[0].ConsumedCapacity[Memory] = *resource.NewQuantity(bytes, resource.BinarySI)
		if requested {
			c.Spec.Devices.Requests[0].Exactly.Capacity = &resourceapi.CapacityRequirements{Requests: map[resourceapi.QualifiedName]resource.Quantity{Memory: resource.MustParse("1")}}
		}
		r, err := readClaim(c)
		if err != nil {
			t.Fatal(err)
		}
		r.Pods = podsOf(allocated(1, nil, 0))
		return r
	}
	if r := claim(1, true, 40*gib); !slices.Contains(r.spec("c", edits.Edits{}).Devices[0].Edits.Env, "XSCHED_MEMORY=42949672960") {
		t.Errorf("the first allocation has no quota: %+v", r.spec("c", edits.Edits{}))
	}
	for name, c := range map[string]struct {
		claims []claimRecord
		want   int64
	}{
		"requested": {[]claimRecord{claim(1, true, 40*gib)}, 40 * gib},
		"default":   {[]claimRecord{claim(1, false, 8*gib)}, 0},
		"several":   {[]claimRecord{claim(1, true, 40*gib), claim(2, false, gib), claim(3, true, 10*gib)}, 10 * gib},
	} {
		state := checkpoint{Claims: map[types.UID]claimRecord{}}
		for i, r := range c.claims {
			state.Claims[uid(claimKind, i+1)] = r
		}
		all := state.grants()
		if len(all) != 1 {
			t.Fatalf("%s: %+v", name, all)
		}
		got := int64(0)
		if all[0].Memory != nil {
			got = *all[0].Memory
		}
		if got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
}

// TestSeveralClaims: hints hold for a program on all of its GPUs, so the lowest claim of a pod counts.
func TestSeveralClaims(t *testing.T) {
	high, err := readClaim(allocated(1, []string{gpu0}, 60, class(`"priority":10,"latencyTarget":"20ms","level":2,"group":"a"`)))
	if err != nil {
		t.Fatal(err)
	}
	low, err := readClaim(allocated(2, []string{gpu1}, 20, class(`"priority":-10,"level":3`)))
	if err != nil {
		t.Fatal(err)
	}
	low.Pods = high.Pods
	for _, order := range [][2]int{{1, 2}, {2, 1}} {
		state := checkpoint{Claims: map[types.UID]claimRecord{uid(claimKind, order[0]): high, uid(claimKind, order[1]): low}}
		all := state.grants()
		if len(all) != 1 {
			t.Fatalf("%d grants", len(all))
		}
		g := all[0]
		if *g.Priority != -10 || *g.Utilization != 20 || *g.Level != 3 || g.LatencyTargetUS != nil || g.Group != "a" || !slices.Equal(g.Devices, []string{"0000:01:00.0", "0000:02:00.0"}) {
			t.Errorf("%+v", g)
		}
	}
}

// TestSharedClaim: every pod that may use a claim gets its grant.
func TestSharedClaim(t *testing.T) {
	claim := allocated(1, []string{gpu0}, 0, class(`"priority":3`))
	claim.Status.ReservedFor = append(claim.Status.ReservedFor,
		resourceapi.ResourceClaimConsumerReference{Resource: "pods", Name: "second", UID: uid(podKind, 2)},
		resourceapi.ResourceClaimConsumerReference{APIGroup: "batch", Resource: "jobs", Name: "job", UID: uid(podKind, 3)})
	r, err := readClaim(claim)
	if err != nil {
		t.Fatal(err)
	}
	state := checkpoint{Claims: map[types.UID]claimRecord{claim.UID: r}}
	if all := state.grants(); len(all) != 2 || all[1].Pod != "second" || *all[1].Priority != 3 {
		t.Errorf("%+v", all)
	}
}

func TestSubrequest(t *testing.T) {
	claim := allocated(1, []string{gpu0}, 0, own(`"group":"main"`, "gpu0"), own(`"group":"other"`, "gpu0/slow"))
	claim.Spec.Devices.Requests[0] = resourceapi.DeviceRequest{Name: "gpu0", FirstAvailable: []resourceapi.DeviceSubRequest{
		{Name: "slow", DeviceClassName: "gpu-batch"}, {Name: "fast", DeviceClassName: "gpu-latency"},
	}}
	claim.Status.Allocation.Devices.Results[0].Request = "gpu0/fast"
	r, err := readClaim(claim)
	if err != nil || r.Devices[0].Class != "gpu-latency" || r.Devices[0].Parameters.Group != "main" {
		t.Errorf("%+v, %v", r, err)
	}
}
