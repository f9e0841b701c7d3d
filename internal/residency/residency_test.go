// SPDX-License-Identifier: Apache-2.0

package residency

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"xsched/internal/model"
)

// TestTurns: two programs that don't fit together take turns, only what is short moves, and moving costs at most
// a tenth of the time.
func TestTurns(t *testing.T) {
	for _, n := range []int{2, 3, 5} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			w := newWorld(t, 140*gib)
			w.check = keepsTurns
			for range n {
				w.add(0, 90*gib)
			}
			const time10 = 10 * time.Minute
			w.run(time10)
			moves, moved := 0, model.Bytes(0)
			for _, m := range w.device.Moves() {
				if m.Want == WantOut {
					moves++
					moved += m.Bytes
				}
			}
			if moves < 10 || moved > model.Bytes(moves)*41*gib && n == 2 {
				t.Errorf("%d moves of %v", moves, moved)
			}
			for _, a := range w.programs {
				t.Logf("program %d: waited at most %v, moved for %v", a.ID, a.longest, a.moving)
				if a.longest > time.Duration(n)*70*time.Second { // of which 45 s are for the arena, in the first round
					t.Errorf("program %d waited %v", a.ID, a.longest)
				}
				if a.moving > time10/amortize {
					t.Errorf("program %d moved for %v of %v", a.ID, a.moving, time10)
				}
				if a.MovableBytes < 90*gib {
					t.Errorf("program %d has %v", a.ID, a.Used)
				}
			}
		})
	}
}

// TestTurnsWithLittleHostMemory: the first program leaves the second one what it needs to leave. On an H200 the
// first one pinned the whole budget, and the second one never left.
func TestTurnsWithLittleHostMemory(t *testing.T) {
	w := newWorld(t, 140*gib)
	w.host.Budget = 100 * gib
	first := w.add(0, 90*gib)
	w.run(time.Minute) // alone: everything that it may pin is pinned
	second := w.add(0, 90*gib)
	w.run(5 * time.Minute)
	outs := map[int]int{}
	for _, m := range w.device.Moves() {
		if m.Want == WantOut {
			outs[int(m.ID)]++
		}
	}
	if outs[int(first.ID)] < 3 || outs[int(second.ID)] < 3 {
		t.Errorf("moves out by program: %v", outs)
	}
}

// TestSlowMovesLongTurns: turns grow with what a move costs.
func TestSlowMovesLongTurns(t *testing.T) {
	w := newWorld(t, 140*gib)
	w.speed = 8
	w.add(0, 90*gib)
	w.add(0, 90*gib)
	w.run(20 * time.Minute)
	for _, a := range w.programs {
		if a.moving > 20*time.Minute/amortize || a.moving < time.Minute {
			t.Errorf("program %d moved for %v of 20 min", a.ID, a.moving)
		}
	}
}

// TestUnusableRoom: the driver says that there is room, and no allocation gets it.
func TestUnusableRoom(t *testing.T) {
	w := newWorld(t, 140*gib)
	w.gap = 5 * gib
	w.add(0, 90*gib)
	w.run(20 * time.Second)
	late := w.add(-1, 48*gib)
	if w.free() < late.wants || late.wants == 0 {
		t.Fatal("the room does not seem to suffice")
	}
	w.run(time.Second)
	if late.verdict != VerdictFail {
		t.Errorf("a lower program's verdict is %v", late.verdict)
	}
	equal := w.add(0, 0)
	equal.ask(w, 48*gib)
	w.run(2 * time.Minute)
	if equal.MovableBytes != 48*gib {
		t.Errorf("an equal one has %v, verdict %v", equal.Used, equal.verdict)
	}
	w.run(10 * time.Minute)
	for _, a := range w.programs {
		if a.longest > 90*time.Second {
			t.Errorf("program %d waited %v", a.ID, a.longest)
		}
	}
}

// TestWithdrawn: an order whose reason ends before memory leaves is withdrawn.
func TestWithdrawn(t *testing.T) {
	w := newWorld(t, 200*gib)
	a := w.add(0, 64*gib)
	a.Evicted = All
	w.run(5 * time.Second) // its arena is not ready
	a.Evicted = 0
	w.run(time.Minute)
	if a.moving > 0 {
		t.Errorf("it moved for %v", a.moving)
	}
}

// TestEndlessMove: a program that reports progress for ever gets no order most of the time. As long as it has one,
// nothing suspends it.
func TestEndlessMove(t *testing.T) {
	w := newWorld(t, 140*gib)
	a := w.add(-1, 90*gib)
	a.ignores = true
	w.add(1, 90*gib)
	const all = time.Hour
	var moving time.Duration
	for range all / (20 * time.Millisecond) {
		w.run(20 * time.Millisecond)
		a.Moved ^= 1
		if w.programs[1].wants == 0 {
			w.programs[1].ask(w, 90*gib)
		}
		if w.device.Moving(a.ID) {
			moving += 20 * time.Millisecond
		}
	}
	if moving == 0 || moving > all/4 {
		t.Errorf("it had an order for %v of %v", moving, all)
	}
}

// keepsTurns fails if a program leaves for an equal one before its turn is over.
func keepsTurns(w *world, a *actor, _, is Order) {
	if is.Want != WantOut || is.ByHand || a.returned == 0 || a.AwayBytes > 0 {
		return
	}
	by := w.programs[is.By-1]
	if by.Priority <= a.Priority && w.now.Sub(a.returned) < turn {
		w.t.Errorf("%v: program %d leaves for %d after %v", w.now, a.ID, by.ID, w.now.Sub(a.returned))
	}
	if by.Priority < a.Priority && a.Idle < idleLong {
		w.t.Errorf("%v: program %d leaves for a lower one", w.now, a.ID)
	}
}

// TestHigherGetsRoom: lower programs leave at once, the lowest first, and return when there is room.
func TestHigherGetsRoom(t *testing.T) {
	w := newWorld(t, 140*gib)
	w.check = keepsTurns
	low, mid := w.add(-10, 60*gib), w.add(0, 60*gib)
	w.run(5 * time.Second) // in the middle of their turns
	high := w.add(10, 60*gib)
	w.decide()
	if low.order.Want != WantOut || low.order.Bytes != 40*gib || mid.order.Want != WantNothing || high.verdict != VerdictWait {
		t.Fatalf("low %+v, mid %+v, high %v", low.order, mid.order, high.verdict)
	}
	w.run(30 * time.Second)
	if high.MovableBytes != 60*gib || low.AwayBytes != 40*gib {
		t.Fatalf("high has %v, low has %v away", high.Used, low.AwayBytes)
	}
	w.run(5 * time.Minute)
	if low.AwayBytes == 0 || mid.AwayBytes != 0 || high.AwayBytes != 0 {
		t.Errorf("away: low %v, mid %v, high %v", low.AwayBytes, mid.AwayBytes, high.AwayBytes)
	}
	low.busy = false
	high.Used, high.MovableBytes = 0, 0
	w.run(2 * time.Second)
	if low.AwayBytes != 0 {
		t.Errorf("low did not return: %v away", low.AwayBytes)
	}
}

// TestIdleServiceGivesRoom: a service without requests for a minute gives its room to a job, and takes it back with
// its next request.
func TestIdleServiceGivesRoom(t *testing.T) {
	w := newWorld(t, 100*gib)
	service := w.add(10, 80*gib)
	service.busy = false
	w.run(10 * time.Second)
	job := w.add(0, 80*gib)
	w.run(time.Second)
	if job.verdict != VerdictFail {
		t.Errorf("after 10 s: verdict %v", job.verdict)
	}
	job.verdict = VerdictNone
	w.run(time.Minute)
	job.ask(w, 80*gib)
	w.run(3 * time.Second)
	if job.MovableBytes != 80*gib || service.AwayBytes != 60*gib {
		t.Fatalf("job has %v, service has %v away", job.Used, service.AwayBytes)
	}
	w.run(45 * time.Second) // its arena
	service.busy = true
	w.run(3 * time.Second)
	if service.AwayBytes != 0 || job.AwayBytes == 0 {
		t.Errorf("service has %v away, job %v", service.AwayBytes, job.AwayBytes)
	}
}

// TestFixedProgramEvictsNoEqual: what can't leave itself would keep an equal program away for ever.
func TestFixedProgramEvictsNoEqual(t *testing.T) {
	w := newWorld(t, 100*gib)
	w.add(0, 80*gib)
	w.run(time.Minute)
	fixed := w.add(0, 0)
	fixed.Movable = false
	fixed.ask(w, 40*gib)
	w.run(time.Second)
	if fixed.verdict != VerdictFail || w.programs[0].AwayBytes != 0 {
		t.Errorf("verdict %v, %v away", fixed.verdict, w.programs[0].AwayBytes)
	}
}

// TestByHand: out until restored, though there is room; refused without host memory.
func TestByHand(t *testing.T) {
	w := newWorld(t, 100*gib)
	a := w.add(0, 64*gib)
	a.Evicted = All
	w.run(45 * time.Second)
	if a.AwayBytes != 64*gib || a.Phase != Away {
		t.Fatalf("%v away, phase %v", a.AwayBytes, a.Phase)
	}
	w.run(time.Minute)
	if a.AwayBytes != 64*gib {
		t.Fatal("it returned without an order")
	}
	a.Evicted, a.Restored = 0, w.now
	w.run(3 * time.Second)
	if a.AwayBytes != 0 {
		t.Fatal("it did not return")
	}
	moves := w.device.Moves()
	if len(moves) != 2 || !moves[0].ByHand || moves[0].Bytes != 64*gib || moves[1].Want != WantBack || moves[1].Bytes != 64*gib {
		t.Errorf("moves %+v", moves)
	}
	if per := moves[0].Bytes / model.Bytes(moves[0].Took/time.Millisecond) * 1000; per < 40*gib || per > 51*gib {
		t.Errorf("%v a second: the time of pinning counts", per)
	}

	w = newWorld(t, 100*gib)
	w.host.Budget = 10 * gib
	b := w.add(0, 20*gib)
	b.Evicted = All
	w.run(time.Second)
	if why, failed := w.device.HandFailed(b.ID); !failed || why != HostFull || b.AwayBytes != 0 {
		t.Errorf("result %v, failed %v, %v away", why, failed, b.AwayBytes)
	}
}

// TestByHandFails: a program whose work does not end stays, and says so.
func TestByHandFails(t *testing.T) {
	w := newWorld(t, 100*gib)
	a, b := w.add(0, 10*gib), w.add(0, 10*gib)
	a.drain, b.ignores = time.Hour, true
	a.Evicted, b.Evicted = All, All
	w.run(30 * time.Second)
	if why, failed := w.device.HandFailed(a.ID); !failed || why != Busy || a.AwayBytes != 0 {
		t.Errorf("result %v, failed %v", why, failed)
	}
	if _, failed := w.device.HandFailed(b.ID); !failed || w.device.Moving(b.ID) {
		t.Error("an order that is not obeyed does not end")
	}
	a.drain = 0
	w.device.RetryByHand(a.ID)
	w.run(5 * time.Second)
	if a.AwayBytes != 10*gib {
		t.Error("the second attempt failed, too")
	}
}

// TestWrongRoom: reports of the free room are wrong, and everybody gets on nevertheless.
func TestWrongRoom(t *testing.T) {
	for name, lie := range map[string]func() model.Bytes{
		"none":   func() model.Bytes { return 0 },
		"plenty": func() model.Bytes { return 500 * gib },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 140*gib)
			w.check = keepsTurns
			w.lies = lie
			w.add(0, 90*gib)
			w.run(20 * time.Second)
			w.add(0, 90*gib)
			w.run(10 * time.Minute)
			for _, a := range w.programs {
				t.Logf("program %d: waited at most %v, moved for %v", a.ID, a.longest, a.moving)
				if a.MovableBytes < 90*gib || a.longest > 90*time.Second || a.moving > time.Minute {
					t.Errorf("program %d has %v, waited %v, moved for %v", a.ID, a.Used, a.longest, a.moving)
				}
			}
			// The other one ends: nothing stays away for want of a correct report.
			w.programs = w.programs[:1]
			w.run(90 * time.Second)
			if w.programs[0].AwayBytes != 0 {
				t.Errorf("%v stay away", w.programs[0].AwayBytes)
			}
			// Nor does what an operator has moved.
			w.programs[0].Evicted = All
			w.run(time.Minute)
			w.programs[0].Evicted, w.programs[0].Restored = 0, w.now
			if w.run(20 * time.Second); w.programs[0].AwayBytes != 0 {
				t.Errorf("%v stay away after they were restored", w.programs[0].AwayBytes)
			}
		})
	}
}

// TestRandomWorlds: whatever programs do, the rules hold.
func TestRandomWorlds(t *testing.T)     { randomWorlds(t, 0, 6) }
func TestLongRandomWorlds(t *testing.T) { randomWorlds(t, 6, 100) }

func randomWorlds(t *testing.T, from, to uint64) {
	for seed := from; seed < to; seed++ {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { randomWorld(t, seed) })
	}
}

func randomWorld(t *testing.T, seed uint64) {
	w := newWorld(t, 140*gib)
	w.random = rand.New(rand.NewPCG(seed, 7))
	w.host.Budget = model.Bytes(w.random.IntN(400)) * gib
	w.check = keepsTurns
	idle := time.Duration(0) // that somebody is away for nobody
	for range 3000 {
		switch r := w.random.IntN(100); {
		case r < 1 && len(w.programs) < 8:
			a := w.add(model.Priority(w.random.IntN(3)*10), model.Bytes(1+w.random.IntN(100))*gib)
			a.Movable = w.random.IntN(4) > 0
			a.drain = time.Duration(w.random.IntN(100)) * 25 * time.Millisecond
			a.ignores = w.random.IntN(10) == 0
			if !a.Movable {
				a.MovableBytes = 0
			}
		case r < 3 && len(w.programs) > 0:
			a := w.programs[w.random.IntN(len(w.programs))]
			a.busy = !a.busy
		case r < 4 && len(w.programs) > 0:
			a := w.programs[w.random.IntN(len(w.programs))]
			if a.Evicted, a.Restored = All-a.Evicted, 0; a.Evicted == 0 {
				a.Restored = w.now
			}
		case r < 5 && len(w.programs) > 0:
			a := w.programs[w.random.IntN(len(w.programs))]
			if a.wants == 0 && a.Phase == Resident && a.Movable {
				a.ask(w, model.Bytes(1+w.random.IntN(20))*gib)
			}
		case r < 6 && len(w.programs) > 0:
			a := w.programs[w.random.IntN(len(w.programs))]
			if a.Phase == Resident && a.Order == a.order.Sequence && a.wants == 0 {
				a.Used, a.MovableBytes = 0, 0
			}
		}
		w.run(200 * time.Millisecond)
		if w.wasted() {
			idle += 200 * time.Millisecond
		} else {
			idle = 0
		}
		if idle > 3*retryMax {
			t.Fatalf("%v: memory stays away for nobody", w.now)
		}
		for _, a := range w.programs {
			if a.Restored > 0 && a.AwayBytes == 0 {
				a.Restored = 0
			}
		}
	}
}

// wasted reports that memory is away although it would fit and nobody needs the room.
func (w *world) wasted() bool {
	fits := false
	for _, a := range w.programs {
		if a.Wanted > 0 || a.Phase != Resident && a.Phase != Away {
			return false
		}
		fits = fits || a.AwayBytes > 0 && a.Evicted == 0 && !a.ignores && a.AwayBytes <= w.free()-gib
	}
	return fits
}

// TestSlabs: host memory is pinned in whole slabs, so that small and odd amounts can leave, too.
func TestSlabs(t *testing.T) {
	for _, used := range []model.Bytes{granule, 40 << 20, 64 << 20, gib + granule} {
		w := newWorld(t, 100*gib)
		a := w.add(0, used)
		a.Evicted = All
		if w.run(3 * time.Second); a.AwayBytes != used {
			t.Errorf("%v of %v are away", a.AwayBytes, used)
		}
	}
}

// TestControlGroup: a program gets no more host memory than its control group allows, whatever the budget is.
func TestControlGroup(t *testing.T) {
	w := newWorld(t, 100*gib)
	a := w.add(0, 60*gib)
	a.HostMost = 20 * gib
	w.run(30 * time.Second)
	high := w.add(10, 50*gib)
	w.run(10 * time.Second)
	if a.order.Host > 20*gib || high.MovableBytes != 50*gib || a.AwayBytes != 10*gib {
		t.Errorf("granted %v, %v away, %v got", a.order.Host, a.AwayBytes, high.Used)
	}
	a.Evicted = All
	w.run(time.Second)
	if why, failed := w.device.HandFailed(a.ID); !failed || why != HostFull {
		t.Errorf("result %v, %v", why, failed)
	}
}

// TestSteps: a program that allocates in many small steps fills its memory within its turn, and then takes turns with
// the one that it displaced.
func TestSteps(t *testing.T) {
	w := newWorld(t, 140*gib)
	w.check = keepsTurns
	w.add(0, 90*gib)
	w.run(time.Minute)
	second, began := w.add(0, 0), w.now
	for second.MovableBytes < 90*gib && w.now.Sub(began) < time.Minute {
		if second.wants == 0 && second.AwayBytes == 0 {
			second.ask(w, 5*gib)
		}
		w.run(100 * time.Millisecond)
	}
	if took := w.now.Sub(began); took > 20*time.Second {
		t.Errorf("18 steps took %v", took)
	}
	w.run(5 * time.Minute)
	for _, a := range w.programs {
		if a.longest > 90*time.Second || a.moving > 36*time.Second {
			t.Errorf("program %d waited %v, moved for %v", a.ID, a.longest, a.moving)
		}
	}
}
