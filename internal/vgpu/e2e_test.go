// SPDX-License-Identifier: Apache-2.0

package vgpu

import (
	"testing"
	"time"
)

// One tenant computes the right thing, and the device counts what it did.
func TestTenantChecksum(t *testing.T) {
	d := startDevice(t, 2)
	p := d.tenant(nil, "--name", "a", "--kernel-us", "500", "--depth", "2")
	p.say("loop")
	for range 20 {
		p.expect("I")
	}
	p.say("pause")
	p.expect("P")
	p.say("rate 100")
	for range 5 {
		p.expect("I")
	}
	launches := p.quit(true)
	s := d.statsWhen("the client to go", func(s *Stats) bool { return s.Contexts == 0 })
	a, ok := s.Client(p.pid())
	if !ok || a.Kernels != launches || a.Alive || s.Objects != 0 {
		t.Errorf("launched %d; account %+v, %d objects left", launches, a, s.Objects)
	}
	if want := int64(launches) * 500_000; a.RunNS != want {
		t.Errorf("ran %v, want %v", time.Duration(a.RunNS), time.Duration(want))
	}
	t.Logf("wakes late by %v on average, at most %v, %d of %d over 100 us", time.Duration(s.WakeLateMean),
		time.Duration(s.WakeLateMax), s.WakesOver100u, s.Wakes)
}
