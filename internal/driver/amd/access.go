// SPDX-License-Identifier: Apache-2.0

package amd

import (
	"fmt"
	"io/fs"
	"path"
	"strconv"

	"xsched/internal/driver"
	"xsched/internal/model"
)

// container returns the memory of a GPU, whether it is divided into partitions, and what a container
// needs for it. The partitions of a GPU are nodes with one PCI address and a render file each.
//
// The render files decide what a container sees: the driver hides nodes whose file it may not open.
// The variables of the runtime libraries stay unset, because a container counts its GPUs from 0.
func (i *instance) container(id model.DeviceID) (memory uint64, divided bool, a driver.Access) {
	nodes, err := ReadTopology(i.Sources.Sysfs)
	if err != nil {
		return 0, false, a
	}
	ordinal, parts := 0, 0
	for _, n := range nodes {
		if !n.IsGPU() {
			continue
		}
		ordinal++
		if n.Device() != id {
			continue
		}
		parts++
		memory += i.memory(n)
		switch minor := n.Properties["drm_render_minor"]; {
		case i.virtual: // there are no files: the stand-in reads the container runtime's variable
			a.Variables = map[string]string{"AMD_VISIBLE_DEVICES": fmt.Sprintf("GPU-58536368-6564-2076-6972-7475616c%04x", ordinal)}
		case minor != 0:
			a.Nodes = append(a.Nodes, fmt.Sprintf("/dev/dri/renderD%d", minor))
		}
	}
	if len(a.Nodes) > 0 {
		a.Nodes = append(a.Nodes, "/dev/kfd")
	}
	return memory, parts > 1, a
}

// memory returns the size of a node's own memory; 0: unknown.
func (i *instance) memory(n Node) (sum uint64) {
	folder := path.Join("topology/nodes", strconv.Itoa(n.Number), "mem_banks")
	banks, _ := fs.ReadDir(i.Sources.Sysfs, folder)
	for _, b := range banks {
		text, err := fs.ReadFile(i.Sources.Sysfs, path.Join(folder, b.Name(), "properties"))
		if err != nil {
			continue
		}
		if p, err := ParseProperties(text); err == nil && localHeap(p["heap_type"]) {
			sum += p["size_in_bytes"]
		}
	}
	return sum
}

// localHeap reports a heap in the GPU's own memory, public or private. From
// drivers/gpu/drm/amd/include/kgd_kfd_interface.h and HSA_HEAPTYPE of libhsakmt.
func localHeap(kind uint64) bool { return kind == 1 || kind == 2 }
