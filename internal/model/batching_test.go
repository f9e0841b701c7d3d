// SPDX-License-Identifier: Apache-2.0

package model

import (
	"slices"
	"testing"
	"time"
)

// TestBatching: a batch is for several short requests of many kernels that the CPU delays, and a single request of another
// kind does not end it.
func TestBatching(t *testing.T) {
	const ms = time.Millisecond
	type request struct {
		launches     uint64
		submit, wait time.Duration
	}
	short := request{70, 2 * ms, ms / 2}
	for name, c := range map[string]struct {
		requests []request
		want     bool
		apart    bool // the policy does not let kernels gather
	}{
		"one":                         {[]request{short}, false, false},
		"short":                       {[]request{short, short, short, short}, true, false},
		"few kernels":                 {[]request{{4, 2 * ms, 0}, {4, 2 * ms, 0}, {4, 2 * ms, 0}, {4, 2 * ms, 0}}, false, false},
		"long":                        {[]request{{700, 26 * ms, ms}, {700, 26 * ms, ms}, {700, 26 * ms, ms}, {700, 26 * ms, ms}}, false, false},
		"GPU-bound":                   {[]request{{70, 2 * ms, 9 * ms}, {70, 2 * ms, 9 * ms}, {70, 2 * ms, 9 * ms}, {70, 2 * ms, 9 * ms}}, false, false},
		"one of another kind":         {[]request{short, short, short, short, {700, 26 * ms, ms}, short}, true, false},
		"several of another kind":     {[]request{short, short, short, short, {4, ms, 0}, {4, ms, 0}, {4, ms, 0}, {4, ms, 0}}, false, false},
		"interrupted, then not":       {[]request{short, short, {4, ms, 0}, short, short}, false, false},
		"its wait is the batch's run": {[]request{short, short, short, short, {70, 2 * ms, 2 * ms}}, true, false},
		"its runs last":               {slices.Repeat([]request{{70, 2 * ms, 2 * ms}}, 8), true, false},
		"batches lose":                {slices.Concat(slices.Repeat([]request{short}, 4), slices.Repeat([]request{{70, 2 * ms, 2 * ms}}, 4)), false, false},
		"waits without batches":       {slices.Concat(slices.Repeat([]request{short}, 4), slices.Repeat([]request{{70, 2 * ms, 2 * ms}}, 4)), true, true},
		"lost, and pauses":            {slices.Concat(slices.Repeat([]request{short}, 4), slices.Repeat([]request{{70, 2 * ms, 2 * ms}}, 4), slices.Repeat([]request{short}, 1000)), false, false},
		"lost, and tries again":       {slices.Concat(slices.Repeat([]request{short}, 4), slices.Repeat([]request{{70, 2 * ms, 2 * ms}}, 4), slices.Repeat([]request{short}, 1028)), true, false},
	} {
		var b Batching
		for _, r := range c.requests {
			b.End(r.launches, r.submit, r.wait, b.On && !c.apart)
		}
		if b.On != c.want {
			t.Errorf("%s: %+v", name, b)
		}
	}
}
