// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"math/rand/v2"
	"runtime"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"xsched/internal/model"
)

// A client change that races with Listen either rings or is seen. Both start simultaneously,
// thousands of times.
func TestNoChangeIsLost(t *testing.T) {
	p, fd, err := NewPage(1)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Release()
	defer func() { _ = unix.Close(fd) }()
	if runtime.GOMAXPROCS(0) < 2 {
		t.Skip("needs two processors")
	}
	c := ClientPage{p}
	c.CreateQueue(0, 0, 1<<8)
	rounds := 10000
	if testing.Short() {
		rounds = 1000
	}
	var ready, done atomic.Int64 // rounds the client has started and finished
	var rang atomic.Bool
	start := func(round int64) {
		// Yield on a busy machine, so that the client can run.
		for n := 0; ready.Load() < 2*round; n++ {
			if n > 1000 {
				runtime.Gosched()
			}
		}
		for range rand.IntN(64) {
			_ = ready.Load()
		}
	}
	go func() {
		for r := int64(1); r <= int64(rounds); r++ {
			ready.Add(1)
			start(r)
			c.SetBusy(0, r%2 == 1, model.Time(r))
			rang.Store(!c.Quiet(0))
			done.Store(r)
		}
	}()
	silent, seen := 0, 0
	for r := int64(1); r <= int64(rounds); r++ {
		p.Hush(0)
		ready.Add(1)
		start(r)
		v := p.Listen(0)
		for done.Load() < r {
			runtime.Gosched()
		}
		if v.Transitions == uint64(r) {
			seen++
		} else if !rang.Load() {
			t.Fatalf("change %d neither rang nor was seen", r)
		}
		if !rang.Load() {
			silent++
		}
	}
	if silent == 0 || seen == 0 || silent == rounds {
		t.Errorf("of %d changes %d were silent and %d seen: the two never met", rounds, silent, seen)
	}
}
