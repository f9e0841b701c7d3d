// SPDX-License-Identifier: Apache-2.0

package overhead

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"

	"xsched/internal/bench"
	"xsched/internal/embedded"
)

// PairBudgetNS is what a change to busy and the one back to idle may add, together, while a
// program has its device to itself. A GPU's shortest launch that is waited for takes some 10 us; two
// readings of the clock, which a virtual machine may make slow, are in it.
const PairBudgetNS = 200

const (
	pairLoops    = 5       // runs of the pair loop
	pairsPerLoop = 500_000 // of each kind
	pairWaitMS   = 500     // for the daemon to see that the loop is alone
)

// PairCost is the pair loop on the null driver: work that is waited for at once, so that the
// queue becomes busy and idle each time, with a daemon that has nothing to decide about it. Blocks
// through the shim and past it take turns in one process.
type PairCost struct {
	Pairs       int       `json:"pairs"`
	PlainNS     []float64 `json:"plain_ns"` // a launch and its wait, best block of each run
	WithNS      []float64 `json:"with_ns"`
	AddedNS     float64   `json:"added_ns"` // median of the runs
	TaskPlainNS []float64 `json:"task_plain_ns"`
	TaskWithNS  []float64 `json:"task_with_ns"` // a launch and a wait for all of the device
	TaskAddedNS float64   `json:"task_added_ns"`
	CopyPlainNS []float64 `json:"copy_plain_ns"`
	CopyWithNS  []float64 `json:"copy_with_ns"` // a copy that waits by itself
	CopyAddedNS float64   `json:"copy_added_ns"`
	ClockNS     float64   `json:"clock_ns"` // a reading of the clock, median of the runs
	BudgetNS    float64   `json:"budget_ns"`
	Rings       uint64    `json:"rings"` // of the doorbell, all in all
	OK          bool      `json:"ok"`
}

type pairLine struct {
	Pairs     int     `json:"pairs"`
	Shim      bool    `json:"shim"`
	Plain     float64 `json:"pair_plain_ns"`
	With      float64 `json:"pair_ns"`
	TaskPlain float64 `json:"task_plain_ns"`
	TaskWith  float64 `json:"task_ns"`
	CopyPlain float64 `json:"copy_plain_ns"`
	CopyWith  float64 `json:"copy_ns"`
	Clock     float64 `json:"clock_ns"`
}

func measurePair(ctx context.Context, r *bench.Rig, o Options) (PairCost, error) {
	var cost PairCost
	shim, err := embedded.Unpack(embedded.Shim)
	if err != nil {
		return cost, err
	}
	loop := filepath.Join(o.Null, "pairloop")
	if _, err := os.Stat(loop); err != nil {
		return cost, fmt.Errorf("no pair loop at %s; run `make null`", loop)
	}
	before, err := r.Daemon.Stats(ctx)
	if err != nil {
		return cost, err
	}
	var added, taskAdded, copyAdded, clock []float64
	for range pairLoops {
		cmd := exec.CommandContext(ctx, loop, fmt.Sprint(pairsPerLoop), fmt.Sprint(pairWaitMS))
		cmd.Env = bench.WithEnv("LD_LIBRARY_PATH="+o.Null, "LD_PRELOAD="+shim, "XSCHED_DIR="+r.Dir)
		text, err := cmd.Output()
		if err != nil {
			return cost, fmt.Errorf("run %s: %w", loop, err)
		}
		var line pairLine
		if err := json.Unmarshal(text, &line); err != nil {
			return cost, fmt.Errorf("read the pair loop's answer: %w", err)
		}
		if !line.Shim {
			return cost, errors.New("the pair loop ran without the shim: the measurement is void")
		}
		cost.Pairs = line.Pairs
		cost.PlainNS, cost.WithNS = append(cost.PlainNS, line.Plain), append(cost.WithNS, line.With)
		cost.CopyPlainNS, cost.CopyWithNS = append(cost.CopyPlainNS, line.CopyPlain), append(cost.CopyWithNS, line.CopyWith)
		added, copyAdded = append(added, line.With-line.Plain), append(copyAdded, line.CopyWith-line.CopyPlain)
		cost.TaskPlainNS, cost.TaskWithNS = append(cost.TaskPlainNS, line.TaskPlain), append(cost.TaskWithNS, line.TaskWith)
		taskAdded, clock = append(taskAdded, line.TaskWith-line.TaskPlain), append(clock, line.Clock)
	}
	after, err := r.Daemon.Stats(ctx)
	if err != nil {
		return cost, err
	}
	for _, v := range [][]float64{added, taskAdded, copyAdded, clock} {
		slices.Sort(v)
	}
	cost.AddedNS, cost.TaskAddedNS = added[pairLoops/2], taskAdded[pairLoops/2]
	cost.CopyAddedNS, cost.ClockNS = copyAdded[pairLoops/2], clock[pairLoops/2]
	cost.BudgetNS = PairBudgetNS
	cost.Rings = after.Doorbells - before.Doorbells
	// Each run joins and opens a queue: a few rings, but not one a change.
	if seen := after.SessionsTotal - before.SessionsTotal; seen < pairLoops || cost.Rings > pairLoops*pairsPerLoop/100 {
		return cost, fmt.Errorf("the daemon saw %d of %d pair loops and %d rings: the measurement is void", seen, pairLoops, cost.Rings)
	}
	cost.OK = cost.AddedNS <= cost.BudgetNS && cost.CopyAddedNS <= cost.BudgetNS
	return cost, nil
}
