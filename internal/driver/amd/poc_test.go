// SPDX-License-Identifier: Apache-2.0

package amd_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"xsched/internal/driver/amd"
	vamd "xsched/internal/virtual/amd"
	"xsched/internal/virtual/amd/kfdtest"
)

// An online request preempts the offline process, runs, and resumes it, on the virtual device with
// assumed costs. Medians, because the machine is shared.
func TestTargetsOfThePOC(t *testing.T) {
	d := kfdtest.Serve(t, vamd.DefaultConfig())
	online, offline := d.Target(t), d.Target(t)
	debugger := attach(t, d, offline.PID)
	const requests, backlog = 20, 100
	for range backlog {
		offline.Ask("w")
	}
	var suspend, resume, whole []time.Duration
	for range requests {
		start := time.Now()
		if results, err := debugger.Suspend(amd.AllGPUs, amd.ComputeQueues, amd.GraceDefault); err != nil || len(results) != 1 || !results[0].Done() {
			t.Fatalf("%+v %v", results, err)
		}
		suspend = append(suspend, time.Since(start))
		online.Ask("w")
		online.Ask("f")
		whole = append(whole, time.Since(start))
		again := time.Now()
		if _, err := debugger.Resume(amd.AllGPUs); err != nil {
			t.Fatal(err)
		}
		resume = append(resume, time.Since(again))
		time.Sleep(2 * time.Millisecond)
	}
	for _, c := range []struct {
		what  string
		times []time.Duration
		limit time.Duration
	}{{"suspend", suspend, 5 * time.Millisecond}, {"resume", resume, 10 * time.Millisecond}, {"online request", whole, 50 * time.Millisecond}} {
		slices.Sort(c.times)
		median := c.times[len(c.times)/2]
		t.Logf("verified on the double: %s median %v, slowest %v, wanted below %v", c.what, median, c.times[len(c.times)-1], c.limit)
		if median > c.limit {
			t.Errorf("%s: median %v, wanted below %v", c.what, median, c.limit)
		}
	}
	sum := uint64(0)
	for range backlog {
		for b := range uint32(time.Millisecond / (10 * time.Microsecond)) {
			sum = vamd.Fold(sum, 1, b)
		}
	}
	if got, want := offline.Ask("f"), fmt.Sprintf("F %016x", sum); got != want {
		t.Errorf("the offline process computed %s, want %s: work was lost or done twice", got, want)
	}
}
