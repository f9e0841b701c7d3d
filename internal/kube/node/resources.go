// SPDX-License-Identifier: Apache-2.0

package node

import (
	"slices"
	"strings"
	"unicode/utf8"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/dynamic-resource-allocation/deviceattribute"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	"xsched/internal/control"
	"xsched/internal/kube/cluster"
)

// Capacities of a GPU that claims consume.
const (
	Share  resourceapi.QualifiedName = "share"  // in percent; 0 is best effort
	Memory resourceapi.QualifiedName = "memory" // accounted by the scheduler; a request is a quota
)

// Taints of a GPU. New claims avoid it unless they tolerate the taint.
const (
	TaintDaemonDown = cluster.Driver + "/daemon-down" // nobody schedules its programs
	TaintStuck      = cluster.Driver + "/stuck"       // a suspend or resume does not end
	TaintMPS        = cluster.Driver + "/mps"         // all programs share the queues of one server
	TaintLevel1     = cluster.Driver + "/level-1"     // programs can be held, not preempted
	TaintDivided    = cluster.Driver + "/partitioned" // its instances belong to the vendor's own driver
)

// maxDevices is the number of devices with taints that a ResourceSlice may have.
const maxDevices = 64

// capacities are those of a GPU.
type capacities struct {
	memory  resource.Quantity // of GPUs whose driver does not report it; zero: unknown
	tenants int               // most claims of a GPU
}

// gpus describes the daemon's GPUs as devices. GPUs that no container can be bound to are left out: programs
// may name devices that do not exist.
func (p places) gpus(devices []control.Device, c capacities) []resourceapi.Device {
	out := make([]resourceapi.Device, 0, len(devices))
	for i := range devices {
		if devices[i].Access != nil {
			out = append(out, p.device(&devices[i], c))
		}
	}
	slices.SortFunc(out, func(a, b resourceapi.Device) int { return strings.Compare(a.Name, b.Name) })
	return out
}

// resources are the resources of a node.
func resources(pool string, devices []resourceapi.Device) resourceslice.DriverResources {
	var all []resourceslice.Slice
	for chunk := range slices.Chunk(devices, maxDevices) {
		all = append(all, resourceslice.Slice{Devices: chunk})
	}
	if len(all) == 0 {
		all = []resourceslice.Slice{{}} // an empty pool shows that the plugin runs
	}
	return resourceslice.DriverResources{Pools: map[string]resourceslice.Pool{pool: {Slices: all}}}
}

func (p places) device(d *control.Device, c capacities) resourceapi.Device {
	shared, level := true, int64(d.MaxLevel)
	attributes := map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
		"maxLevel": {IntValue: &level}, "probed": {BoolValue: &d.Probed}, "virtual": {BoolValue: &d.Virtual}, "partitioned": {BoolValue: &d.MIG},
	}
	for name, text := range map[resourceapi.QualifiedName]string{"driver": d.Driver, "model": d.Name} {
		if text := clip(text); text != "" {
			attributes[name] = resourceapi.DeviceAttribute{StringValue: &text}
		}
	}
	for _, a := range p.of(d) {
		attributes[a.Name] = a.Value
	}
	capacity := map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{Share: consumable(100, 0, 1)}
	memory := int64(d.MemoryBytes)
	if memory == 0 {
		memory = c.memory.Value()
	}
	if memory &^= 1<<20 - 1; memory > 0 {
		// By default an equal part each, so that memory never ends before the tenants do.
		capacity[Memory] = consumable(memory, memory/int64(max(c.tenants, 1))&^(1<<20-1), 1<<20)
	}
	return resourceapi.Device{Name: DeviceName(d.ID), AllowMultipleAllocations: &shared, Attributes: attributes, Capacity: capacity}
}

// places are the attributes of GPUs that say where they are, by their ID. They never change, and reading
// them costs a pass over the machine's buses.
type places map[string][]deviceattribute.DeviceAttribute

func (p places) of(d *control.Device) []deviceattribute.DeviceAttribute {
	if known, ok := p[d.ID]; ok {
		return known
	}
	var out []deviceattribute.DeviceAttribute
	if a, err := deviceattribute.GetPCIBusIDAttribute(d.ID); err == nil {
		out = append(out, a)
	}
	if !d.Virtual {
		if a, err := deviceattribute.GetPCIeRootAttributeByPCIBusID(d.ID); err == nil {
			out = append(out, a)
		}
	}
	p[d.ID] = out
	return out
}

// consumable is a capacity of which claims take a default, or multiples of a step.
func consumable(all, usual, step int64) resourceapi.DeviceCapacity {
	quantity := func(n int64) *resource.Quantity { return resource.NewQuantity(n, resource.BinarySI) }
	return resourceapi.DeviceCapacity{Value: *quantity(all), RequestPolicy: &resourceapi.CapacityRequestPolicy{
		Default: quantity(usual), ValidRange: &resourceapi.CapacityRequestPolicyRange{Min: quantity(0), Step: quantity(step)},
	}}
}

// clip shortens a text to the length of an attribute.
func clip(text string) string {
	text = strings.ToValidUTF8(text, "")
	for len(text) > resourceapi.DeviceAttributeMaxValueLength {
		_, size := utf8.DecodeLastRuneInString(text)
		text = text[:len(text)-size]
	}
	return text
}

// DeviceName returns the name of a GPU in a ResourceSlice: its PCI address as a DNS label.
func DeviceName(id string) string {
	return "gpu-" + strings.NewReplacer(":", "-", ".", "-").Replace(strings.ToLower(id))
}

// taints returns the taints that the state of the GPUs asks for, by name of the device.
func taints(devices []control.Device, stats *control.Stats) map[string][]string {
	out := map[string][]string{}
	for i := range devices {
		d := &devices[i]
		name := DeviceName(d.ID)
		if slices.ContainsFunc(stats.Targets, func(t control.TargetStats) bool { return t.Device == d.ID && t.StuckSinceNS != 0 }) {
			out[name] = append(out[name], TaintStuck)
		}
		if d.MIG {
			out[name] = append(out[name], TaintDivided)
		}
		switch expected := !d.Probed && d.LevelReason == ""; {
		case strings.HasPrefix(d.LevelReason, "MPS"):
			out[name] = append(out[name], TaintMPS)
		case d.MaxLevel == 1 && !expected:
			out[name] = append(out[name], TaintLevel1)
		}
	}
	return out
}

// tainted returns the devices with taints.
func tainted(devices []resourceapi.Device, keys map[string][]string, everywhere ...string) []resourceapi.Device {
	out := make([]resourceapi.Device, 0, len(devices))
	for _, d := range devices {
		d.Taints = nil
		for _, key := range append(slices.Clone(everywhere), keys[d.Name]...) {
			d.Taints = append(d.Taints, resourceapi.DeviceTaint{Key: key, Effect: resourceapi.DeviceTaintEffectNoSchedule})
		}
		out = append(out, d)
	}
	return out
}
