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
		how      Gathering // if asked: NotAsked means that they gather, -1 that the policy does not let them
	}{
		"one":                         {again(1, short), 0, NotAsked},
		"short":                       {again(4, short), WholeRequest, NotAsked},
		"short, tail known":           {again(8, short), 59, NotAsked}, // 70 * (1 - 0.6 * 0.5 / 2)
		"measured again":              {again(8+batchPause, short), WholeRequest, NotAsked},
		"few kernels":                 {again(100, few), 0, NotAsked},
		"long":                        {again(8, long), 0, NotAsked},
		"GPU-bound":                   {again(8, busy), 0, NotAsked},
		"one of another kind":         {slices.Concat(again(8, short), again(1, long), again(1, short)), 59, NotAsked},
		"several of another kind":     {slices.Concat(again(8, short), again(4, long)), 0, NotAsked},
		"in parts":                    {again(8, part, part, short), 59, NotAsked},
		"parts only":                  {slices.Concat(again(8, short), again(batchShort, part)), 0, NotAsked},
		"interrupted, then not":       {slices.Concat(again(2, short), again(1, long), again(3, short)), 0, NotAsked},
		"the device is the limit":     {slices.Concat(again(4, short), again(4, request{70, 2 * ms, 3 * ms / 2})), 0, NotAsked},
		"it would be, without bursts": {slices.Concat(again(4, short), again(4, request{70, 2 * ms, 3 * ms / 2})), WholeRequest, -1},
		"refused":                     {again(8, short), 0, NotGathered},
		"refused once":                {again(7, short), WholeRequest, NotGathered},
		"refused, and tries again":    {again(12+batchPause, short), WholeRequest, NotGathered},
		"lost, and pauses":            {slices.Concat(again(4, short), again(4, request{70, 2 * ms, 3 * ms / 2}), again(1000, short)), 0, NotAsked},
		"lost, and tries again":       {slices.Concat(again(4, short), again(4, request{70, 2 * ms, 3 * ms / 2}), again(1028, short)), WholeRequest, NotAsked},
	} {
		var b Batching
		for _, r := range c.requests {
			how := NotAsked
			switch {
			case b.Burst == 0 || c.how < 0: // the policy does not let them
			case c.how == NotAsked:
				how = Gathered
			default:
				how = c.how
			}
			b.End(r.launches, r.submit, r.wait, how)
		}
		if b.Burst != c.want || b.Refused != (c.how == NotGathered && c.want == 0) {
			t.Errorf("%s: %+v", name, b)
		}
	}
}
