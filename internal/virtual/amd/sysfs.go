// SPDX-License-Identifier: Apache-2.0

package vamd

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"xsched/internal/driver/amd/abi"
)

// Paths of the driver's files below Options.Root.
const (
	sysfsFolder = "sys/class/kfd/kfd"
	debugFolder = "sys/kernel/debug/kfd"
)

// location returns the PCI address of a GPU in the topology's form.
func location(number int) uint32 { return uint32(number+1) << 8 }

// tree writes the driver's files below a folder.
type tree struct{ root string }

func (t tree) put(name, format string, args ...any) error {
	path := filepath.Join(t.root, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	// Rename, so that readers see the old or the new text.
	temporary := path + ".new"
	if err := os.WriteFile(temporary, fmt.Appendf(nil, format, args...), 0o444); err != nil {
		return err
	}
	return os.Rename(temporary, path)
}

// properties formats pairs of a name and a number.
func properties(pairs ...any) string {
	var b strings.Builder
	for i := 0; i+1 < len(pairs); i += 2 {
		fmt.Fprintf(&b, "%v %v\n", pairs[i], pairs[i+1])
	}
	return b.String()
}

// writeTopology writes the nodes: one CPU, then the GPUs.
func (t tree) writeTopology(config Config) error {
	top := filepath.Join(sysfsFolder, "topology")
	node := func(n int, rest string) string { return filepath.Join(top, "nodes", strconv.Itoa(n), rest) }
	link := func(from, to int) string {
		return properties("type", 2, "version_major", 0, "version_minor", 0, "node_from", from, "node_to", to, "weight", 20,
			"min_latency", 0, "max_latency", 0, "min_bandwidth", 312, "max_bandwidth", 64000, "recommended_transfer_size", 0,
			"recommended_sdma_engine_id_mask", 0, "flags", 1)
	}
	files := [][2]string{
		{filepath.Join(top, "generation_id"), "2\n"},
		{filepath.Join(top, "system_properties"), properties("platform_oem", 0, "platform_id", 0, "platform_rev", 0)},
		{node(0, "gpu_id"), "0\n"},
		{node(0, "name"), "\n"},
		{node(0, "properties"), properties("cpu_cores_count", 2, "simd_count", 0, "mem_banks_count", 1, "caches_count", 0, "io_links_count", config.GPUs,
			"p2p_links_count", 0, "cpu_core_id_base", 0, "simd_id_base", 0, "max_waves_per_simd", 0, "lds_size_in_kb", 0, "gds_size_in_kb", 0, "num_gws", 0,
			"wave_front_size", 0, "array_count", 0, "simd_arrays_per_engine", 0, "cu_per_simd_array", 0, "simd_per_cu", 0, "max_slots_scratch_cu", 0,
			"gfx_target_version", 0, "vendor_id", 0, "device_id", 0, "location_id", 0, "domain", 0, "drm_render_minor", 0, "hive_id", 0,
			"num_sdma_engines", 0, "num_sdma_xgmi_engines", 0, "num_sdma_queues_per_engine", 0, "num_cp_queues", 0, "max_engine_clk_ccompute", 3000)},
		{node(0, "mem_banks/0/properties"), properties("heap_type", 0, "size_in_bytes", uint64(16)<<30, "flags", 0, "width", 64, "mem_clk_max", 3200)},
	}
	for i := range config.GPUs {
		n, areas := i+1, config.saveAreas()
		files = append(files,
			[2]string{node(0, fmt.Sprintf("io_links/%d/properties", i)), link(0, n)},
			[2]string{node(n, "io_links/0/properties"), link(n, 0)},
			[2]string{node(n, "gpu_id"), fmt.Sprintf("%d\n", gpuID(i))},
			[2]string{node(n, "name"), "virtual\n"},
			[2]string{node(n, "mem_banks/0/properties"), properties("heap_type", 1, "size_in_bytes", config.Memory, "flags", 0, "width", 8192, "mem_clk_max", 1300)},
			[2]string{node(n, "properties"), properties("cpu_cores_count", 0, "simd_count", simds, "mem_banks_count", 1, "caches_count", 0, "io_links_count", 1,
				"p2p_links_count", 0, "cpu_core_id_base", 0, "simd_id_base", 2147487744, "max_waves_per_simd", 8, "lds_size_in_kb", config.ldsKiB(), "gds_size_in_kb", 0,
				"num_gws", 64, "wave_front_size", 64, "array_count", arrays, "simd_arrays_per_engine", 1, "cu_per_simd_array", 10, "simd_per_cu", simdsPerUnit,
				"max_slots_scratch_cu", 32, "gfx_target_version", config.GFX, "vendor_id", 4098, "device_id", 29858, "location_id", location(i), "domain", 0,
				"drm_render_minor", 128+i, "hive_id", 0, "num_sdma_engines", sdmaEngines, "num_sdma_xgmi_engines", xgmiEngines, "num_sdma_queues_per_engine", queuesPerSDMA,
				"num_cp_queues", 24, "max_engine_clk_fcompute", 2100, "local_mem_size", 0, "fw_version", 185, "capability", 0x20000000|0x8000|0x2000|0x280,
				"debug_prop", 1495, "sdma_fw_version", 24, "unique_id", 0, "num_xcc", config.xccs(), "cwsr_size", areas.save, "ctl_stack_size", areas.controlStack,
				"max_engine_clk_ccompute", 3000)},
		)
	}
	for _, f := range files {
		if err := t.put(f[0], "%s", f[1]); err != nil {
			return fmt.Errorf("write topology: %w", err)
		}
	}
	return os.MkdirAll(filepath.Join(t.root, sysfsFolder, "proc"), 0o755)
}

// writeProcess publishes a process's queues, or removes them if it is gone.
func (t tree) writeProcess(p *Process, gpus []*gpu, gone bool) error {
	folder := filepath.Join(sysfsFolder, "proc", strconv.Itoa(p.PID))
	if gone {
		return os.RemoveAll(filepath.Join(t.root, folder))
	}
	if err := t.put(filepath.Join(folder, "pasid"), "%d\n", 0x8000+p.PID%0x7fff); err != nil {
		return err
	}
	for _, g := range gpus {
		used := uint64(0)
		for handle, m := range p.memory {
			if m.vram && uint32(handle>>32) == g.id {
				used += m.bytes
			}
		}
		for name, v := range map[string]uint64{"vram_%d": used, "sdma_%d": 0, "stats_%d/evicted_ms": 0, "stats_%d/cu_occupancy": 0} {
			if err := t.put(filepath.Join(folder, fmt.Sprintf(name, g.id)), "%d\n", v); err != nil {
				return err
			}
		}
	}
	queues := filepath.Join(folder, "queues")
	if err := os.MkdirAll(filepath.Join(t.root, queues), 0o755); err != nil {
		return err
	}
	shown, err := os.ReadDir(filepath.Join(t.root, queues))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, e := range shown {
		if id, err := strconv.ParseUint(e.Name(), 10, 32); err == nil && p.queue(uint32(id)) == nil {
			if err := os.RemoveAll(filepath.Join(t.root, queues, e.Name())); err != nil {
				return err
			}
		}
	}
	for _, q := range p.queues {
		at := filepath.Join(queues, strconv.Itoa(int(q.id)))
		for name, v := range map[string]uint64{"size": uint64(q.bytes), "type": uint64(sysfsType[q.kind]), "gpuid": uint64(q.gpu)} {
			if err := t.put(filepath.Join(at, name), "%d", v); err != nil {
				return err
			}
		}
	}
	return nil
}

// writeMQDs writes the dump of queue descriptors; priorities select the pipe class.
func (t tree) writeMQDs(config Config, all map[int]*Process) error {
	var b strings.Builder
	for _, p := range all {
		if len(p.queues) == 0 {
			continue
		}
		if config.Variant == DKMS {
			fmt.Fprintf(&b, "Process %d PASID %d:\n", p.PID, p.PID)
		} else {
			fmt.Fprintf(&b, "Process %d PASID 0x%x:\n", p.PID, 0x8000+p.PID%0x7fff)
		}
		for _, q := range slices.Backward(p.queues) {

			if !q.compute() {
				fmt.Fprintf(&b, "  SDMA queue on device %x\n", q.gpu)
				continue
			}
			fmt.Fprintf(&b, "  Compute queue on device %x\n", q.gpu)
			dump(&b, 0, q.descriptor())
		}
	}
	return t.put(filepath.Join(debugFolder, "mqds"), "%s", b.String())
}

func dump(b *strings.Builder, first uint32, words []uint32) {
	for i := 0; i < len(words); i += 8 {
		fmt.Fprintf(b, "    %08x:", first+uint32(i*4))
		for _, w := range words[i:min(i+8, len(words))] {
			fmt.Fprintf(b, " %08x", w)
		}
		b.WriteByte('\n')
	}
}

// descriptor returns the parts of a gfx9 memory queue descriptor that readers use.
func (q *queue) descriptor() []uint32 {
	words := make([]uint32, 0x800/4)
	put := func(at int, v uint32) { words[at/4] = v }
	put(0, 0xc0310800)
	if q.active() {
		put(0x208, 1)
		put(0x20c, 8)
	}
	class := uint32(0)
	switch {
	case q.priority >= 11:
		class = 2
	case q.priority >= 7:
		class = 1
	}
	put(0x214, class)
	put(0x218, q.priority)
	put(0x220, uint32(q.ring>>8))
	put(0x224, uint32(q.ring>>40))
	order := uint32(0)
	for uint32(8)<<order < q.bytes {
		order++
	}
	put(0x244, order)
	put(0x23c, q.doorbell*doorbellBytes) // dwords << 2
	if q.kind == abi.KFD_IOC_QUEUE_TYPE_COMPUTE_AQL {
		put(0x2d4, 1)
	}
	const packet = 16 // dwords
	put(0x228, uint32(q.sink.retired*packet))
	put(0x2d8, uint32(q.sink.submitted*packet))
	put(0x2ac, uint32(q.saveAddress))
	put(0x2b0, uint32(q.saveAddress>>32))
	put(0x2c4, q.saveBytes)
	return words
}
