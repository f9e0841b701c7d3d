// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"testing"
	"time"
)

// A launch waits for room on a suspended GPU, and the driver answers no question about that context. Calls
// on another GPU of the same process come back at once: they wait for no question of the shim's.
func TestBlockedQuestionHoldsUpNoOtherGPU(t *testing.T) {
	t.Parallel()
	path, err := crowded()
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t)
	low := &gpuTenant{program: w.run(options{}, path), on: []int{0, 1}}
	w.ready(low)
	high := w.onGPUs(options{priority: 10}, 400*time.Millisecond, 0, 0)
	w.ready(high)
	w.must("mode", "--gpu", pciOf(0), "suspend")
	count := func() (n int) {
		low.send("count")
		if _, err := fmt.Sscanf(low.expect("C ", soon), "C %d", &n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	for range 3 {
		eventually(t, soon, "no launch returns on the suspended GPU", func() bool {
			before := count()
			time.Sleep(50 * time.Millisecond)
			return count() == before && w.queueOn(low.pid(), 0).State == "suspended"
		})
		for _, call := range []string{"destroy", "capture"} {
			low.send(call)
			var us int
			if _, err := fmt.Sscanf(low.expect("D ", 2*soon), "D %d", &us); err != nil {
				t.Fatal(err)
			}
			if took := time.Duration(us) * time.Microsecond; took > 200*time.Millisecond {
				t.Errorf("%s on the other GPU took %v", call, took)
			}
		}
	}
}
