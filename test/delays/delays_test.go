// SPDX-License-Identifier: Apache-2.0

package delays

import "testing"

func TestDelaysInATime(t *testing.T) {
	r := &Record{}
	for _, d := range []delay{{100, 200}, {300, 350}, {900, 1000}} {
		r.Add(d.from, d.to)
	}
	for _, c := range []struct{ from, to, sum, longest, n int64 }{
		{0, 50, 0, 0, 0},
		{0, 1000, 250, 100, 3},
		{150, 340, 90, 50, 2},
		{400, 900, 0, 0, 0},
		{950, 2000, 50, 50, 1},
	} {
		if sum, longest, n := r.In(c.from, c.to); int64(sum) != c.sum || int64(longest) != c.longest || int64(n) != c.n {
			t.Errorf("[%d, %d): %d, at most %d, %d of them; want %+v", c.from, c.to, sum, longest, n, c)
		}
	}
}
