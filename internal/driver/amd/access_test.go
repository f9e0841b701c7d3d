// SPDX-License-Identifier: Apache-2.0

package amd

import (
	"slices"
	"testing"
	"testing/fstest"
)

// TestAccess: a container gets the render file of one GPU. A GPU in partitions has several nodes at one address.
func TestAccess(t *testing.T) {
	file := func(text string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(text)} }
	files := fstest.MapFS{}
	for number, properties := range map[string]string{
		"0": "", "1": "location_id 256\ndrm_render_minor 128\n", "2": "location_id 512\ndrm_render_minor 136\n", "3": "location_id 512\ndrm_render_minor 137\n",
	} {
		id := "7\n"
		if number == "0" {
			id = "0\n"
		}
		folder := "topology/nodes/" + number
		files[folder+"/gpu_id"], files[folder+"/name"], files[folder+"/properties"] = file(id), file("x\n"), file(properties)
		files[folder+"/mem_banks/0/properties"] = file("heap_type 1\nsize_in_bytes 1000\n")
		files[folder+"/mem_banks/1/properties"] = file("heap_type 4\nsize_in_bytes 9\n") // not of the GPU itself
	}
	i := &instance{Driver: Driver{Sources: Sources{Sysfs: files}}}
	for id, want := range map[string]struct {
		nodes   []string
		divided bool
		memory  uint64
	}{
		"0000:01:00.0": {[]string{"/dev/dri/renderD128", "/dev/kfd"}, false, 1000},
		"0000:02:00.0": {[]string{"/dev/dri/renderD136", "/dev/dri/renderD137", "/dev/kfd"}, true, 2000},
		"0000:09:00.0": {nil, false, 0},
	} {
		for gpu := range i.gpus() {
			if gpu.String() != id {
				continue
			}
			d, listed := i.Describe(gpu, false)
			if !listed || !slices.Equal(d.Access.Nodes, want.nodes) || len(d.Access.Variables)+len(d.Access.CDI) != 0 || d.Divided != want.divided || d.MemoryBytes != want.memory {
				t.Errorf("%s: %+v", id, d)
			}
		}
	}
}
