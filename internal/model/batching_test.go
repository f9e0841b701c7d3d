// SPDX-License-Identifier: Apache-2.0

package model

import (
	"slices"
	"testing"
	"time"
)

// TestBatching: a burst is for several short requests of many kernels that the CPU delays, and a single request of another
// kind does not end it. It begins as long before the wait as the device needs for it.
func TestBatching(t *testing.T) {
	const ms = time.Millisecond
	type request struct {
		launches     uint64
		submit, wait time.Duration
	}
	short, few, part := request{70, 2 * ms, ms / 2}, request{4, 2 * ms, 0}, request{1, ms / 100, 0}
	long, busy := request{700, 26 * ms, ms}, request{70, 2 * ms, 9 * ms}
	again := func(n int, r ...request) []request { return slices.Repeat(r, n) }
	for name, c := range map[string]struct {
		requests []request
		want     uint32
		without  bool // the policy does not let kernels gather
	}{
		"one":                         {again(1, short), 0, false},
		"short":                       {again(4, short), WholeRequest, false},
		"short, tail known":           {again(8, short), 59, false}, // 70 * (1 - 0.6 * 0.5 / 2)
		"measured again":              {again(8+batchPause, short), WholeRequest, false},
		"few kernels":                 {again(100, few), 0, false},
		"long":                        {again(8, long), 0, false},
		"GPU-bound":                   {again(8, busy), 0, false},
		"one of another kind":         {slices.Concat(again(8, short), again(1, long), again(1, short)), 59, false},
		"several of another kind":     {slices.Concat(again(8, short), again(4, long)), 0, false},
		"in parts":                    {again(8, part, part, short), 59, false},
		"parts only":                  {slices.Concat(again(8, short), again(batchShort, part)), 0, false},
		"interrupted, then not":       {slices.Concat(again(2, short), again(1, long), again(3, short)), 0, false},
		"the device is the limit":     {slices.Concat(again(4, short), again(4, request{70, 2 * ms, 3 * ms / 2})), 0, false},
		"it would be, without bursts": {slices.Concat(again(4, short), again(4, request{70, 2 * ms, 3 * ms / 2})), WholeRequest, true},
		"lost, and pauses":            {slices.Concat(again(4, short), again(4, request{70, 2 * ms, 3 * ms / 2}), again(1000, short)), 0, false},
		"lost, and tries again":       {slices.Concat(again(4, short), again(4, request{70, 2 * ms, 3 * ms / 2}), again(1028, short)), WholeRequest, false},
	} {
		var b Batching
		for _, r := range c.requests {
			b.End(r.launches, r.submit, r.wait, b.Burst > 0 && !c.without)
		}
		if b.Burst != c.want {
			t.Errorf("%s: %+v", name, b)
		}
	}
}
