// SPDX-License-Identifier: Apache-2.0

package control

import (
	"reflect"
	"testing"
)

// TestStrictest checks that no order of two grants gives a pod more than the lower one has.
func TestStrictest(t *testing.T) {
	grant := func(priority, share, level, target int) Grant {
		var g Grant
		if priority != 0 {
			g.Priority = new(int32(priority))
		}
		if share != 0 {
			g.Utilization = new(share)
		}
		if level != 0 {
			g.Level = new(level)
		}
		if target != 0 {
			g.LatencyTargetUS = new(int64(target))
		}
		return g
	}
	memory := func(bytes int64) Grant { return Grant{Priority: new(int32(5)), Memory: &bytes} }
	zero := grant(0, 20, 0, 0)
	zero.Priority = new(int32)
	for name, test := range map[string]struct{ a, b, want Grant }{
		"equal priorities, other shares":  {grant(-10, 100, 0, 0), grant(-10, 1, 0, 0), grant(-10, 1, 0, 0)},
		"lower priority, no share":        {grant(10, 20, 0, 0), grant(-10, 0, 0, 0), grant(-10, 20, 0, 0)},
		"no level is the highest":         {grant(-10, 0, 1, 0), grant(-10, 0, 0, 0), grant(-10, 0, 0, 0)},
		"higher level":                    {grant(-10, 0, 1, 0), grant(-10, 0, 3, 0), grant(-10, 0, 3, 0)},
		"less memory":                     {memory(2), memory(1), memory(1)},
		"memory and no limit of it":       {memory(2), grant(5, 0, 0, 0), memory(2)},
		"longer target":                   {grant(5, 0, 0, 20), grant(5, 0, 0, 50), grant(5, 0, 0, 50)},
		"a limit beside no limit":         {grant(5, 20, 0, 0), grant(0, 0, 0, 0), zero},
		"a low limit beside no limit":     {grant(-5, 0, 0, 0), grant(0, 0, 0, 0), grant(-5, 0, 0, 0)},
		"neither has a limit of priority": {grant(0, 30, 0, 0), grant(0, 40, 0, 0), grant(0, 30, 0, 0)},
	} {
		for _, got := range []Grant{Strictest(test.a, test.b), Strictest(test.b, test.a)} {
			if !reflect.DeepEqual(got, test.want) {
				t.Errorf("%s: %+v", name, got)
			}
		}
	}
}
