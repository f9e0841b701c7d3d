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

// order is a run of random calls.
type order struct {
	seed, threads, calls int
	// signals: streams also wait for values, and the shim has to stop batching in the middle.
	signals bool
	// halted: a debugger stops the shim's thread that releases forgotten batches. A call that forgets to release one
	// never returns.
	halted bool
}

// orders runs random orders of calls from several threads, with the kernels of every program in batches, next to a
// service. The program finds wrong results and calls that do not return.
func orders(t *testing.T, o order, limit time.Duration, meanwhile func(w *world)) {
	t.Helper()
	begun := time.Now()
	w := newWorld(t)
	w.must("policy", "HPF/batch-all")
	high := w.tenant(options{priority: 10}, 100)
	high.send("rate 20")
	program := compile(t, "gcc", "orders.c", "-std=gnu11", "-lpthread")
	flag := map[bool]string{false: "0", true: "1"}
	p := w.run(options{}, program, strconv.Itoa(o.seed), strconv.Itoa(o.threads), strconv.Itoa(o.calls), flag[o.signals], flag[o.halted])
	p.expect("R", soon)
	timeout := time.After(limit)
	for line := ""; line == ""; {
		select {
		case line = <-p.lines:
			if !strings.HasPrefix(line, "ok ") {
				t.Fatalf("%+v: %q; stderr: %s", o, line, p.stderr())
			}
		case <-time.After(500 * time.Millisecond):
			meanwhile(w)
		case <-timeout:
			t.Fatalf("%+v: the program does not end", o)
		}
	}
	switch q := w.process(p.pid()); {
	case q == nil || q.Queues[0].Bursts == 0 && !o.signals:
		t.Errorf("%+v: no batch was released: %+v", o, q)
	default:
		t.Logf("%+v: %d batches, %.1f s", o, q.Queues[0].Bursts, time.Since(begun).Seconds())
	}
	if err := p.wait(soon); err != nil {
		t.Errorf("%+v: %v; stderr: %s", o, err, p.stderr())
	}
	high.finish()
}

func nothing(*world) {}

// TestCallOrders: no order of calls makes a program hang or changes its results.
func TestCallOrders(t *testing.T) {
	t.Parallel()
	orders(t, order{seed: 1, threads: 4, calls: 20_000}, soon, nothing)
}

// TestCallsRelease: every call that waits releases the batches itself, and so does a launch into a batch that is full. No other
// thread does that for the only one.
func TestCallsRelease(t *testing.T) {
	t.Parallel()
	for _, threads := range []int{1, 4} {
		orders(t, order{seed: 2, threads: threads, calls: 20_000, halted: true}, soon, nothing)
	}
}

// TestLongCallOrders is TestCallOrders and TestCallsRelease with more calls. In the former batches come and go.
// XSCHED_ORDERS sets the number of calls, XSCHED_SEED the first seed.
func TestLongCallOrders(t *testing.T) {
	calls, seed := 500_000, 100
	for name, value := range map[string]*int{"XSCHED_ORDERS": &calls, "XSCHED_SEED": &seed} {
		if text := os.Getenv(name); text != "" {
			n, err := strconv.Atoi(text)
			if err != nil {
				t.Fatal(fmt.Errorf("%s: %w", name, err))
			}
			*value = n
		}
	}
	for i, o := range []order{
		{threads: 2, calls: 3},
		{threads: 1, calls: 1, halted: true},
		{threads: 4, calls: 1, halted: true},
		{threads: 6, calls: 2},
		{threads: 8, calls: 2, halted: true},
		{threads: 10, calls: 1, signals: true},
	} {
		o.seed, o.calls = seed+i, calls/10*o.calls
		meanwhile, on := nothing, false
		if !o.halted {
			meanwhile = func(w *world) {
				on = !on
				w.must("policy", map[bool]string{true: "HPF", false: "HPF/batch-all"}[on])
			}
		}
		orders(t, o, 20*time.Minute, meanwhile)
	}
}
