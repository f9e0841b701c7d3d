// SPDX-License-Identifier: Apache-2.0

package model

import (
	"testing"
	"time"
)

func TestFeeding(t *testing.T) {
	const ms = time.Millisecond
	type busy struct{ fed, length time.Duration }
	fed, waited := func(d time.Duration) busy { return busy{d * 9 / 10, d} }, func(d time.Duration) busy { return busy{d / 2, d} }
	for _, c := range []struct {
		name  string
		times []busy
		want  bool
	}{
		{"nothing known", nil, false},
		{"two are not enough", []busy{fed(3 * ms), fed(3 * ms)}, false},
		{"three in a row", []busy{fed(3 * ms), fed(2 * ms), fed(3 * ms)}, true},
		{"the device is what takes the time", []busy{waited(3 * ms), waited(3 * ms), waited(3 * ms)}, false},
		{"now and then", []busy{fed(3 * ms), fed(3 * ms), waited(3 * ms), fed(3 * ms), fed(3 * ms)}, false},
		{"no more", []busy{fed(3 * ms), fed(3 * ms), fed(3 * ms), waited(3 * ms)}, false},
		{"too long", []busy{fed(20 * ms), fed(20 * ms), fed(20 * ms)}, false},
		{"one that took too long", []busy{fed(3 * ms), fed(3 * ms), fed(3 * ms), fed(20 * ms)}, false},
		{"too short", []busy{fed(ms / 2), fed(ms / 2), fed(ms / 2), fed(ms / 2)}, false},
		{"a short one in between", []busy{fed(3 * ms), fed(3 * ms), fed(3 * ms), waited(ms / 10)}, true},
		{"short from now on", []busy{fed(3 * ms), fed(3 * ms), fed(3 * ms), fed(ms / 10), fed(ms / 10), fed(ms / 10), fed(ms / 10)}, false},
		{"unknown ones change nothing", []busy{fed(3 * ms), fed(3 * ms), {0, 3 * ms}, fed(3 * ms), {0, time.Hour}}, true},
		{"nonsense", []busy{{time.Hour, 0}, {-1, -1}, {1<<63 - 1, 1<<63 - 1}, {1, -1 << 63}}, false},
	} {
		var f Feeding
		for _, b := range c.times {
			f.Learn(b.fed, b.length)
		}
		if f.Expected() != c.want {
			t.Errorf("%s: expected %v (%+v)", c.name, f.Expected(), f)
		}
	}
}
