// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"strings"
	"testing"
	"time"

	"xsched/internal/control"
)

// protection returns what the daemon says about the protection of a process; zero: nothing yet.
func (w *world) protection(pid int) control.Protection {
	w.t.Helper()
	if p := w.process(pid); p != nil && len(p.Protection) == 1 {
		return p.Protection[0]
	}
	return control.Protection{}
}

// TestProtectionIsShown: the gain and the cost of protection are in the list, the interface and the metrics.
func TestProtectionIsShown(t *testing.T) {
	w := newWorld(t)
	low := w.saturating(options{})
	high := w.tenant(options{priority: 10}, 1000)
	high.send("rate 100")
	eventually(t, soon, "a gain", func() bool { return w.protection(high.pid()).GainP99US > 0 })
	p := w.protection(high.pid())
	if p.State != control.ProtectionActive || p.NativeSource != "modelled" || p.Requests < 20 || p.NativeP99US < p.P99US || p.CostRatio > 0.2 {
		t.Errorf("%+v", p)
	}
	if text := w.must("list"); !strings.Contains(text, "ms P99 (modelled), costs others") {
		t.Errorf("xsched list:\n%s", text)
	}
	if p := w.process(low.pid()); len(p.Protection) != 0 {
		t.Errorf("the lowest program has an account: %+v", p.Protection)
	}
	high.finish()
	low.finish()
}

// TestCPUBoundHigh: a program whose requests are mostly CPU time gains little, and without timeslices its protection
// costs the low all of that time. It then shares natively, and the low keeps what it has natively.
func TestCPUBoundHigh(t *testing.T) {
	w := newWorld(t)
	low := w.saturating(options{})
	high := w.tenant(options{priority: 10}, 20, "--feed", "120") // 24 ms of CPU time, 2.4 ms of GPU time
	w.waitLevel(high.pid(), 3)
	kept := func() float64 {
		from := nowNS()
		time.Sleep(1500 * time.Millisecond)
		h := w.heldIn(from, nowNS())
		return float64(h.run[low.pid()]) / float64(h.window)
	}
	w.must("mode", "off")
	high.send("rate 20")
	high.iterates(5)
	native := kept()

	w.must("mode", "suspend")
	protected := kept()
	eventually(t, time.Minute, "native sharing", func() bool { return w.protection(high.pid()).State == control.ProtectionNative })
	before := w.stops()
	got := kept()
	stops := w.stops() - before
	t.Logf("the low keeps %.1f %% natively, %.1f %% beside a protected program, %.1f %% once protection is dropped", 100*native, 100*protected, 100*got)
	if got < native-0.05 {
		t.Errorf("the low keeps %.1f %%, natively %.1f %%", 100*got, 100*native)
	}
	if protected > native-0.1 {
		t.Errorf("the low keeps %.1f %% beside a protected program: the test shows nothing", 100*protected)
	}
	if stops > 2 {
		t.Errorf("%d stops while the program shares natively", stops)
	}
	if p := w.protection(high.pid()); p.State == control.ProtectionNative && p.Changes != 1 {
		t.Errorf("%+v", p)
	}
	if text := w.must("list"); !strings.Contains(text, "not worth its cost") {
		t.Errorf("xsched list:\n%s", text)
	}
	high.finish()
	low.finish()
}
