// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"

	"xsched/internal/control"
)

// fleet is a node whose claims Kubernetes places: on the first GPU of the list that has room.
type fleet struct {
	spread
	devices   []resourceapi.Device
	published []resourceapi.Device
	counts    map[string]int
	need      int
	now       time.Time
}

func newFleet(gpus int, names ...string) *fleet {
	f := &fleet{spread: spread{most: DefaultTenants}, counts: map[string]int{}, now: time.Unix(0, 0)}
	var all []control.Device
	for i := range gpus {
		d := control.Device{ID: fmt.Sprintf("0000:%02x:00.0", i+1), MaxLevel: 3, Access: bindable}
		if i < len(names) {
			d.Name = names[i]
		}
		all = append(all, d)
	}
	f.devices = places{}.gpus(all, capacities{tenants: DefaultTenants})
	return f
}

// publish publishes what is prepared now.
func (f *fleet) publish() { f.published = f.apply(f.devices, f.counts, f.need, f.now) }

// burst places claims without a publication in between, and returns how many found room.
func (f *fleet) burst(claims int, fits func(*resourceapi.Device) bool) (placed int) {
	for range claims {
		for i := range f.published {
			d := &f.published[i]
			room := d.Capacity[Tenants]
			if int64(f.counts[d.Name]) < room.Value.Value() && (fits == nil || fits(d)) {
				f.counts[d.Name]++
				placed++
				break
			}
		}
	}
	return placed
}

// uneven is the difference between the fullest and the emptiest GPU.
func (f *fleet) uneven() int {
	all := make([]int, len(f.devices))
	for i := range f.devices {
		all[i] = f.counts[f.devices[i].Name]
	}
	return slices.Max(all) - slices.Min(all)
}

// TestSpread: bursts of claims that reserve nothing end within one claim of even, and all of them end.
func TestSpread(t *testing.T) {
	for _, c := range []struct{ gpus, claims int }{{4, 6}, {4, 4}, {4, 40}, {1, 5}, {8, 9}} {
		f := newFleet(c.gpus)
		for left := c.claims; left > 0; {
			f.publish()
			placed := f.burst(left, nil)
			if left -= placed; placed == 0 {
				t.Fatalf("%d claims on %d GPUs: %d never find room: %v", c.claims, c.gpus, left, f.counts)
			}
			if f.uneven() > 1 {
				t.Errorf("%d claims on %d GPUs: %v", c.claims, c.gpus, f.counts)
			}
			f.now = f.now.Add(time.Second)
		}
	}
}

// TestSpreadOneByOne: claims that come and go one after the other, with and without pauses, use the emptiest GPU.
func TestSpreadOneByOne(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	f := newFleet(4)
	for range 500 {
		f.now = f.now.Add(time.Duration(random.IntN(8)) * time.Second)
		f.publish()
		if random.IntN(3) == 0 {
			for name, n := range f.counts { // any one ends
				if n > 0 {
					f.counts[name]--
					break
				}
			}
			continue
		}
		before := maps.Clone(f.counts)
		if f.burst(1, nil) == 0 {
			if f.uneven() > 0 || f.counts[f.devices[0].Name] < DefaultTenants {
				t.Fatalf("no room at %v", f.counts)
			}
			return
		}
		for i := range f.devices {
			name := f.devices[i].Name
			if f.counts[name] > before[name] && before[name] > slices.Min(slices.Collect(maps.Values(full(f, before)))) {
				t.Fatalf("%v became %v", before, f.counts)
			}
		}
	}
}

func full(f *fleet, counts map[string]int) map[string]int {
	out := map[string]int{}
	for i := range f.devices {
		out[f.devices[i].Name] = counts[f.devices[i].Name]
	}
	return out
}

// TestSpreadLetsEveryoneIn: a claim that only one GPU can serve is not kept waiting for claims on others: GPUs of
// another kind do not count, and after a pause neither do equal ones.
func TestSpreadLetsEveryoneIn(t *testing.T) {
	f := newFleet(2, "large", "small")
	f.counts[f.devices[0].Name] = 5
	f.publish()
	if f.burst(1, func(d *resourceapi.Device) bool { return *d.Attributes["model"].StringValue == "large" }) != 1 {
		t.Error("a claim of a large GPU waits for the small one to fill")
	}
	f = newFleet(2)
	first := func(d *resourceapi.Device) bool { return d.Name == f.devices[0].Name } // the other has no memory left
	f.publish()
	f.counts[f.devices[0].Name] = 3
	f.publish()
	if f.burst(1, first) != 0 {
		t.Error("the first GPU has room although the second is empty")
	}
	f.now = f.now.Add(settled)
	f.publish()
	if f.burst(2, first) != 1 || f.uneven() != 4 {
		t.Errorf("after a pause: %v", f.counts)
	}
	f.counts[f.devices[0].Name] = DefaultTenants
	f.publish()
	if f.now = f.now.Add(settled); f.burst(1, first) != 0 {
		t.Error("more claims than the most")
	}
}

// TestSpreadUnprepared: claims that are allocated and never prepared do not keep others from the node for ever.
func TestSpreadUnprepared(t *testing.T) {
	f := newFleet(4)
	stuck := map[string]int{} // allocated; the plugin never sees them
	place := func() bool {
		f.published = f.apply(f.devices, f.counts, f.need, f.now)
		for i := range f.published {
			d := &f.published[i]
			if room := d.Capacity[Tenants]; int64(stuck[d.Name]) < room.Value.Value() {
				stuck[d.Name]++
				return true
			}
		}
		return false
	}
	for range f.devices {
		if !place() {
			t.Fatal("an empty GPU has no room")
		}
	}
	f.now = f.now.Add(settled)
	if place() {
		t.Error("room for more without a pod that waits")
	}
	f.need = 1
	for range 2 * settled / time.Second {
		f.now = f.now.Add(time.Second)
		if place() {
			return
		}
	}
	t.Errorf("a pod waits for ever: %v", stuck)
}

// pod places a pod: all of its claims, or none.
func (f *fleet) pod(claims int, fits func(*resourceapi.Device) bool) bool {
	before := maps.Clone(f.counts)
	if f.burst(claims, fits) < claims {
		f.counts = before
		return false
	}
	return true
}

// TestSpreadLargePod: a pod with more claims than the node has GPUs, or GPUs of the kind that it asks for, is placed
// within one claim of even. One that needs more than the node can have is not.
func TestSpreadLargePod(t *testing.T) {
	for _, c := range []struct{ gpus, claims, have int }{{2, 3, 0}, {1, 2, 0}, {2, 20, 0}, {4, 9, 1}, {2, 31, 1}} {
		f := newFleet(c.gpus)
		f.counts[f.devices[0].Name] = c.have
		f.publish()
		if f.pod(c.claims, nil) {
			t.Fatalf("a pod of %d claims on %d GPUs is placed before anybody knows of it", c.claims, c.gpus)
		}
		f.need = c.claims
		f.publish()
		if !f.pod(c.claims, nil) || f.uneven() > 1 {
			t.Errorf("a pod of %d claims on %d GPUs with %d: %v", c.claims, c.gpus, c.have, f.counts)
		}
	}
	large := func(d *resourceapi.Device) bool { return *d.Attributes["model"].StringValue == "large" }
	f := newFleet(4, "large", "large", "small", "small")
	f.need = 3 // of the large ones
	if f.publish(); !f.pod(3, large) {
		t.Errorf("three claims of two large GPUs wait: %v", f.counts)
	}
	f = newFleet(2)
	f.need = 2*DefaultTenants + 1
	if f.publish(); f.pod(f.need, nil) {
		t.Error("more claims than the most")
	}
}
