// SPDX-License-Identifier: Apache-2.0

package overhead

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"

	"xsched/internal/bench"
	"xsched/internal/embedded"
)

// StreamRuns is how often each case of the stream loop runs, in turn with the others.
const StreamRuns = 5

// streamCases are programs with one, some and many streams or threads. A thread launches into a stream of its own
// and waits for it.
var streamCases = []struct {
	kind   string
	number int
	count  int // launches in a block of a thread: shorter than a CPU's timeslice
}{
	{"turn", 1, 5000},
	{"turn", 8, 5000},
	{"turn", 64, 5000},
	{"threads", 1, 1000},
	{"threads", 2, 1000},
	{"threads", 8, 500},
}

// StreamCost is one case of the stream loop on the null driver, per launch. Blocks through the shim and past it
// take turns in one process; each run gives the median of its blocks.
type StreamCost struct {
	Kind       string    `json:"kind"` // "turn": one thread, streams in turn; "threads": launch and wait
	Number     int       `json:"number"`
	PlainNS    []float64 `json:"plain_ns"` // time of the cores in use
	WithNS     []float64 `json:"with_ns"`
	AddedNS    []float64 `json:"added_ns"`     // sorted
	AddedCPUNS []float64 `json:"added_cpu_ns"` // sorted; of the threads' own CPU time, whatever else runs
}

// Median returns the median of what the shim adds to a launch.
func (c *StreamCost) Median() float64 { return c.AddedNS[len(c.AddedNS)/2] }

func (c *StreamCost) String() string {
	if c.Kind == "turn" {
		return fmt.Sprintf("%d streams in turn", c.Number)
	}
	return fmt.Sprintf("%d threads that wait", c.Number)
}

// measureStreams runs all cases once, then again: a slow phase of the machine meets them all.
func measureStreams(ctx context.Context, r *bench.Rig, o Options) ([]StreamCost, error) {
	shim, err := embedded.Unpack(embedded.Shim)
	if err != nil {
		return nil, err
	}
	loop := filepath.Join(o.Null, "streamloop")
	if _, err := os.Stat(loop); err != nil {
		return nil, fmt.Errorf("no stream loop at %s; run `make null`", loop)
	}
	costs := make([]StreamCost, len(streamCases))
	for range StreamRuns {
		for i, c := range streamCases {
			cmd := exec.CommandContext(ctx, loop, c.kind, fmt.Sprint(c.number), fmt.Sprint(c.count), fmt.Sprint(pairWaitMS))
			cmd.Env = bench.WithEnv("LD_LIBRARY_PATH="+o.Null, "LD_PRELOAD="+shim, "XSCHED_DIR="+r.Dir)
			text, err := cmd.Output()
			if err != nil {
				return nil, fmt.Errorf("run %s: %w", loop, err)
			}
			var line struct {
				Shim  bool    `json:"shim"`
				Plain float64 `json:"plain_ns"`
				With  float64 `json:"with_ns"`
				Alone float64 `json:"plain_cpu_ns"`
				CPU   float64 `json:"with_cpu_ns"`
			}
			if err := json.Unmarshal(text, &line); err != nil {
				return nil, fmt.Errorf("read the stream loop's answer: %w", err)
			}
			if !line.Shim {
				return nil, errors.New("the stream loop ran without the shim: the measurement is void")
			}
			cost := &costs[i]
			cost.Kind, cost.Number = c.kind, c.number
			cost.PlainNS, cost.WithNS = append(cost.PlainNS, line.Plain), append(cost.WithNS, line.With)
			cost.AddedNS, cost.AddedCPUNS = append(cost.AddedNS, line.With-line.Plain), append(cost.AddedCPUNS, line.CPU-line.Alone)
		}
	}
	for i := range costs {
		slices.Sort(costs[i].AddedNS)
		slices.Sort(costs[i].AddedCPUNS)
	}
	return costs, nil
}

// writeStreams prints what the shim adds to a launch in each case. These figures have no budget: on few cores they
// depend on what else runs.
func writeStreams(w io.Writer, costs []StreamCost) error {
	for i := range costs {
		c := &costs[i]
		_, err := fmt.Fprintf(w, "%-34s %7.1f ns   (%.1f to %.1f in %d runs; CPU time %.1f ns, %.1f to %.1f; best past the shim %.1f ns)\n",
			c, c.Median(), c.AddedNS[0], c.AddedNS[len(c.AddedNS)-1], len(c.AddedNS),
			c.AddedCPUNS[len(c.AddedCPUNS)/2], c.AddedCPUNS[0], c.AddedCPUNS[len(c.AddedCPUNS)-1], slices.Min(c.PlainNS))
		if err != nil {
			return err
		}
	}
	return nil
}
