// SPDX-License-Identifier: Apache-2.0

package amd_test

import (
	"bufio"
	"fmt"
	"strings"
	"testing"
	"time"

	vamd "xsched/internal/virtual/amd"
	"xsched/internal/virtual/amd/kfdtest"
)

// TestLibgpreempt runs the C library's example on a process under a 1 kHz SIGALRM.
func TestLibgpreempt(t *testing.T) {
	for name, flags := range map[string]string{"plain": "", "asan": "-fsanitize=address,undefined -fno-sanitize-recover=all"} {
		t.Run(name, func(t *testing.T) { tryLibgpreempt(t, flags) })
	}
}

func tryLibgpreempt(t *testing.T, flags string) {
	d := kfdtest.Serve(t, vamd.DefaultConfig())
	p := d.Target(t)
	example := kfdtest.Build(t, "gpreempt-example", flags, "shim/gpreempt/example.c", "shim/gpreempt/gpreempt.c", "shim/gpreempt/agent.c", "shim/gpreempt/list.c", "shim/gpreempt/mqds.c")
	d.Env = append(d.Env, "ASAN_OPTIONS=verify_asan_link_order=0") // the virtual device's library is preloaded first
	for hold := 500 * time.Millisecond; !suspendOnce(t, d, p, example, hold); hold *= 2 {
		if hold > 10*time.Second {
			t.Fatal("never looked at in time")
		}
	}
	for tries := 0; ; tries++ { // on a busy machine some are still to be delivered
		var alarms, merged, expected, a, b int
		if _, err := fmt.Sscanf(p.Ask("s"), "S %d %d %d %d %d", &alarms, &merged, &expected, &a, &b); err != nil {
			t.Fatal(err)
		}
		lost := expected - alarms - merged
		if lost >= -1 && lost <= 1 {
			break
		}
		if tries == 100 {
			t.Errorf("%d alarms lost", lost)
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	if out, err := d.Command(t, example, "999999999").CombinedOutput(); err == nil || !strings.Contains(string(out), "No such process") {
		t.Errorf("%s %v", out, err)
	}
}

// suspendOnce makes the example suspend p's queues for hold, and reports whether the check ran
// within that time.
func suspendOnce(t *testing.T, d *kfdtest.Device, p *kfdtest.Program, example string, hold time.Duration) bool {
	t.Helper()
	before, start := p.Ask("r"), time.Now()
	cmd := d.Command(t, example, fmt.Sprint(p.PID), fmt.Sprint(hold.Milliseconds()))
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	stopped, looked := false, false
	s := bufio.NewScanner(out)
	for s.Scan() {
		t.Log(s.Text())
		if strings.HasPrefix(s.Text(), "suspended 1 ") {
			stopped = strings.Contains(s.Text(), "is suspended")
			p.Ask("w")
			time.Sleep(20 * time.Millisecond)
			got := p.Ask("r")
			if looked = time.Since(start) < hold; looked && got != before {
				t.Errorf("a suspended queue has %s, had %s", got, before)
			}
		}
	}
	if err := cmd.Wait(); err != nil || !stopped {
		t.Fatalf("stopped %t, %v", stopped, err)
	}
	p.Ask("f")
	return looked
}
