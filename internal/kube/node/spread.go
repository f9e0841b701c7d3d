// SPDX-License-Identifier: Apache-2.0

package node

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// Tenants is the capacity of a GPU for claims. Each claim takes one.
const Tenants resourceapi.QualifiedName = "tenants"

// settled is how long the claims of the node must stay the same until every GPU has room for one more. A burst
// of pods is placed and prepared in less.
const settled = 5 * time.Second

// spread decides how many claims each GPU may have now, and in which order Kubernetes shall try the GPUs.
//
// Kubernetes takes the first GPU of the list that has room. With a fixed capacity, claims that reserve
// nothing would all get the first GPU. Each GPU therefore has room for one claim more than the emptiest of
// its kind, and the emptiest come first. A GPU of another kind, or without enough memory or share, may be
// what a claim needs. So after a while without a change every GPU has room for one more claim. A pod may have
// more claims than a kind has GPUs. While it waits, the kind has room for all of them, in equal parts. A claim
// that is allocated and never prepared is not counted and takes room: its pod waits for a volume, or its
// parameters are bad. While pods wait and nothing changes, the room therefore grows.
type spread struct {
	most   int            // claims of a GPU
	counts map[string]int // claims by device, as of the last call
	since  time.Time      // when they changed
}

// room returns how many claims each device may have, by name. need is the number of claims of a pod that waits.
func (s *spread) room(devices []resourceapi.Device, counts map[string]int, need int, now time.Time) map[string]int {
	if s.counts == nil || !maps.Equal(counts, s.counts) {
		s.counts, s.since = maps.Clone(counts), now
	}
	kinds := map[string][]string{}
	for i := range devices {
		kind := kindOf(&devices[i])
		kinds[kind] = append(kinds[kind], devices[i].Name)
	}
	out := map[string]int{}
	for _, names := range kinds {
		least := counts[slices.MinFunc(names, byCount(counts))]
		for _, name := range names {
			if out[name] = least + 1; now.Sub(s.since) >= settled {
				out[name] = counts[name] + 1
			}
			if need > 0 {
				out[name] += int(now.Sub(s.since) / settled)
			}
			out[name] = min(out[name], s.most)
		}
		if need > len(names) {
			s.admit(out, names, counts, need)
		}
	}
	return out
}

// admit gives GPUs of a kind room for a pod with this number of claims: each claim is one of the emptiest GPU.
func (s *spread) admit(room map[string]int, names []string, counts map[string]int, need int) {
	filled := maps.Clone(counts)
	for range need {
		name := slices.MinFunc(names, byCount(filled))
		if filled[name] >= s.most {
			break
		}
		filled[name]++
	}
	for _, name := range names {
		room[name] = max(room[name], filled[name])
	}
}

// byCount compares GPUs by their claims, then by their names.
func byCount(counts map[string]int) func(a, b string) int {
	return func(a, b string) int { return cmp.Or(cmp.Compare(counts[a], counts[b]), strings.Compare(a, b)) }
}

// apply sets the capacity of devices, and their order.
func (s *spread) apply(devices []resourceapi.Device, counts map[string]int, need int, now time.Time) []resourceapi.Device {
	room := s.room(devices, counts, need, now)
	out := slices.Clone(devices)
	for i := range out {
		if out[i].Capacity = maps.Clone(out[i].Capacity); out[i].Capacity == nil {
			out[i].Capacity = map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{} // of another release
		}
		one := *resource.NewQuantity(1, resource.DecimalSI)
		out[i].Capacity[Tenants] = resourceapi.DeviceCapacity{
			Value:         *resource.NewQuantity(int64(max(room[out[i].Name], 1)), resource.DecimalSI),
			RequestPolicy: &resourceapi.CapacityRequestPolicy{Default: &one, ValidValues: []resource.Quantity{one}},
		}
	}
	first := byCount(counts)
	slices.SortFunc(out, func(a, b resourceapi.Device) int { return first(a.Name, b.Name) })
	return out
}

// kindOf returns the properties by which claims choose among GPUs, except their place. GPUs with a taint are
// a kind of their own.
func kindOf(d *resourceapi.Device) string {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(d.Attributes)) {
		if a := d.Attributes[name]; !strings.Contains(string(name), "/") {
			fmt.Fprintf(&b, "%s=%s;", name, a.String())
		}
	}
	memory := d.Capacity[Memory]
	fmt.Fprintf(&b, "memory=%s;", memory.Value.String())
	for _, t := range d.Taints {
		b.WriteString(t.Key + ";")
	}
	return b.String()
}

// tenants returns the number of prepared claims of each device.
func (s *store) tenants() map[string]int {
	out := map[string]int{}
	for _, r := range s.known() {
		for i := range r.Devices {
			out[r.Devices[i].Device]++
		}
	}
	return out
}
