// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"
)

// orders runs random orders of calls from several threads, with the kernels of every program in batches, next to a
// service. The program finds wrong results and calls that do not return.
func orders(t *testing.T, seed, threads, calls, signals int, limit time.Duration, meanwhile func(w *world)) {
	t.Helper()
	w := newWorld(t)
	w.must("policy", "HPF/batch-all")
	high := w.tenant(options{priority: 10}, 100)
	high.send("rate 20")
	program := compile(t, "gcc", "orders.c", "-std=gnu11", "-lpthread")
	p := w.run(options{}, program, fmt.Sprint(seed), fmt.Sprint(threads), fmt.Sprint(calls), fmt.Sprint(signals))
	p.expect("R", soon)
	timeout := time.After(limit)
	for line := ""; line == ""; {
		select {
		case line = <-p.lines:
			if !strings.HasPrefix(line, "ok ") {
				t.Fatalf("seed %d: %q; stderr: %s", seed, line, p.stderr())
			}
		case <-time.After(500 * time.Millisecond):
			meanwhile(w)
		case <-timeout:
			t.Fatalf("seed %d: the program does not end", seed)
		}
	}
	if q := w.process(p.pid()); q == nil || (q.Queues[0].Bursts == 0 && signals == 0) {
		t.Errorf("seed %d: no batch was released: %+v", seed, q)
	}
	if err := p.wait(soon); err != nil {
		t.Errorf("seed %d: %v; stderr: %s", seed, err, p.stderr())
	}
	high.finish()
}

// TestCallOrders: no order of calls makes a program hang or changes its results.
func TestCallOrders(t *testing.T) {
	t.Parallel()
	orders(t, 1, 4, 20_000, 0, soon, func(*world) {})
}

// TestLongCallOrders is TestCallOrders with more calls, while batches come and go. In the last run streams also
// wait for values, and the shim has to stop batching in the middle. XSCHED_ORDERS sets the number of calls.
func TestLongCallOrders(t *testing.T) {
	calls := 500_000
	if text := os.Getenv("XSCHED_ORDERS"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil {
			t.Fatal(err)
		}
		calls = n
	}
	for seed, share := range []int{3, 3, 3, 1} {
		on, signals := false, seed/3
		orders(t, seed+100, 2+2*seed, calls/10*share, signals, 20*time.Minute, func(w *world) {
			if on = !on; on {
				w.must("policy", "HPF")
			} else {
				w.must("policy", "HPF/batch-all")
			}
		})
	}
}
