// SPDX-License-Identifier: Apache-2.0

// Package node is the node's part of XSched in Kubernetes: a DRA kubelet plugin that publishes the
// daemon's GPUs and prepares claims of them.
package node

import (
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	"xsched/internal/control"
)

// Share is the capacity that claims reserve in percent; 0 is best effort.
const Share resourceapi.QualifiedName = "share"

// Resources describes the daemon's GPUs as the resources of a node.
func Resources(pool string, devices []control.Device) resourceslice.DriverResources {
	slice := resourceslice.Slice{}
	for i := range devices {
		slice.Devices = append(slice.Devices, device(&devices[i]))
	}
	return resourceslice.DriverResources{Pools: map[string]resourceslice.Pool{pool: {Slices: []resourceslice.Slice{slice}}}}
}

func device(d *control.Device) resourceapi.Device {
	shared, none, all, step := true, resource.MustParse("0"), resource.MustParse("100"), resource.MustParse("1")
	return resourceapi.Device{
		Name: DeviceName(d.ID), AllowMultipleAllocations: &shared,
		Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
			"driver": {StringValue: &d.Driver},
		},
		Capacity: map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{
			Share: {Value: all, RequestPolicy: &resourceapi.CapacityRequestPolicy{
				Default: &none, ValidRange: &resourceapi.CapacityRequestPolicyRange{Min: &none, Max: &all, Step: &step},
			}},
		},
	}
}

// DeviceName returns the name of a GPU in a ResourceSlice: its PCI address as a DNS label.
func DeviceName(id string) string {
	return "gpu-" + strings.NewReplacer(":", "-", ".", "-").Replace(strings.ToLower(id))
}
