// SPDX-License-Identifier: Apache-2.0

package traces

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"xsched/internal/sim/fleet"
)

// modelMemory is the memory of the GPU models of the traces, in GiB. Alibaba does not say what G1, G2 and G3
// are: they have that of a V100M16 here, the least of the others.
var modelMemory = map[string]int{
	"P100": 16, "T4": 16, "V100": 16, "V100M16": 16, "V100M32": 32, "A10": 24, "A100": 80, "G1": 16, "G2": 16, "G3": 16, "MISC": 12,
}

// ReadNodes reads a list of nodes: openb_node_list_*.csv of Alibaba 2023, pai_machine_spec.csv of Alibaba 2020,
// or CSV with the columns nodes, gpus, memory_gib and model. The result is interleaved.
func ReadNodes(name string, r io.Reader) ([]fleet.Node, error) {
	var out []fleet.Node
	model := func(l *line, column string, n int) {
		kind := strings.Clone(l.text(column))
		memory, known := modelMemory[kind]
		if n == 0 {
			return // without GPUs
		}
		if !known && l.err == nil {
			l.err = fmt.Errorf("GPU model %q is unknown; known are %s", kind, strings.Join(slices.Sorted(maps.Keys(modelMemory)), ", "))
		}
		out = append(out, fleet.Node{GPUs: n, Memory: memory, Model: kind})
	}
	var err error
	switch name {
	case "alibaba-2023":
		err = readCSV(r, false, []string{"sn", "gpu", "model"}, func(l *line) {
			n, _ := l.number("gpu")
			model(l, "model", int(n))
		})
	case "alibaba-2020":
		err = readCSV(r, true, []string{"machine", "gpu_type", "cap_cpu", "cap_mem", "cap_gpu"}, func(l *line) {
			n, _ := l.number("cap_gpu")
			model(l, "gpu_type", int(n))
		})
	default:
		err = readCSV(r, false, []string{"nodes", "gpus", "memory_gib", "model"}, func(l *line) {
			count, _ := l.number("nodes")
			gpus, _ := l.number("gpus")
			memory, _ := l.number("memory_gib")
			one := fleet.Node{GPUs: int(gpus), Memory: int(memory), Model: strings.Clone(l.text("model"))}
			for range int(min(count, 100_000)) {
				out = append(out, one)
			}
		})
	}
	if err == nil && len(out) == 0 {
		err = fmt.Errorf("the list has no nodes with GPUs")
	}
	if err == nil {
		err = fleet.CheckNodes(out)
	}
	if err != nil {
		return nil, fmt.Errorf("read nodes: %w", err)
	}
	return fleet.Interleave(out), nil
}
