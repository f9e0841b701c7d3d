// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"xsched/internal/model"
)

// leaseModel states the rules of one lease without sharing code with it. Each hold is the process on
// one device; devices with their own lease have a model each.
type leaseModel struct {
	page  *fakePage
	lease *Lease
	holds []*holdModel

	ends model.Time // when the client resumes everything; 0: nothing is suspended
}

type holdModel struct {
	hold   *Hold
	held   bool
	void   bool
	ending bool
}

// settle voids what the client has undone, or undoes now.
func (m *leaseModel) settle(now model.Time, recovered bool) {
	for _, h := range m.holds {
		h.void = h.held && (h.void || recovered || m.ends != 0 && now > m.ends)
	}
}

// overdue: some hold must end at the deadline, so nothing may move the deadline.
func (m *leaseModel) overdue(but *holdModel) bool {
	for _, h := range m.holds {
		if h != but && h.held && (h.void || h.ending) {
			return true
		}
	}
	return false
}

func (m *leaseModel) any() bool {
	for _, h := range m.holds {
		if h.held {
			return true
		}
	}
	return false
}

// check compares page and holds with the model.
func (m *leaseModel) check(t *rapid.T, now model.Time) {
	if _, deadline := m.page.get(); model.Time(deadline) != m.ends {
		t.Fatalf("deadline %v, want %v", deadline, m.ends)
	}
	for i, h := range m.holds {
		if h.hold.Held() != h.held || h.hold.Valid(now) != (h.held && !h.void) {
			t.Fatalf("hold %d: held %v, valid %v; want %+v", i, h.hold.Held(), h.hold.Valid(now), *h)
		}
	}
}

// Leases against their model: three devices of a process, with a lease each or a shared one.
func TestLeaseProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const devices = 3
		own := rapid.SampledFrom([]int{0, 1, devices}).Draw(t, "own leases")
		shared := &fakePage{}
		pages := map[int]*fakePage{}
		leases := NewLeases(shared, limit, own, func(i int, gpu model.DeviceID) LeasePage {
			if int(gpu) != i {
				t.Fatalf("lease %d for device %d", i, gpu)
			}
			pages[i] = &fakePage{}
			return pages[i]
		})
		models, of := map[*Lease]*leaseModel{}, [devices]*leaseModel{}
		var holds [devices]*holdModel
		for i := range devices {
			l := leases.Of(model.DeviceID(i))
			m := models[l]
			if m == nil {
				m = &leaseModel{page: shared, lease: l}
				if p := pages[i]; p != nil {
					m.page = p
				}
				models[l] = m
			}
			holds[i] = &holdModel{hold: l.Hold()}
			m.holds = append(m.holds, holds[i])
			of[i] = m
			if want := uint32(0); i < own {
				want = uint32(i) + 1
				if leases.Number(model.DeviceID(i)) != want {
					t.Fatalf("device %d has lease %d", i, leases.Number(model.DeviceID(i)))
				}
			}
		}
		for i := range devices {
			if leases.Of(model.DeviceID(i)) != of[i].lease {
				t.Fatalf("another lease for device %d", i)
			}
		}
		if want := min(own+1, devices); len(models) != want {
			t.Fatalf("%d leases, want %d", len(models), want)
		}
		now := model.Time(time.Hour)
		each := func(f func(m *leaseModel)) {
			for _, m := range models {
				f(m)
			}
		}
		settle := func() { each(func(m *leaseModel) { m.settle(now, false) }) }
		device := func() int { return rapid.IntRange(0, devices-1).Draw(t, "device") }
		t.Repeat(map[string]func(*rapid.T){
			"pass": func(t *rapid.T) {
				now = now.Add(time.Duration(rapid.IntRange(1, 60).Draw(t, "ms")) * time.Millisecond)
				settle()
			},
			"tick": func(*rapid.T) {
				leases.Tick(now)
				each(func(m *leaseModel) {
					if m.any() && !m.overdue(nil) {
						m.ends = now.Add(limit)
					}
				})
			},
			"begin": func(t *rapid.T) {
				i := device()
				h, m := holds[i], of[i]
				epoch, _ := m.page.get()
				allowed := !h.ending && !h.void && (!m.overdue(h) || now <= m.ends)
				if got := h.hold.Begin(now); got != allowed {
					t.Fatalf("begin on device %d: %v, want %v", i, got, allowed)
				}
				if !allowed {
					return
				}
				if !m.overdue(h) {
					m.ends = now.Add(limit)
				}
				h.held = true
				if e, _ := m.page.get(); e <= epoch {
					t.Fatalf("epoch %d after %d", e, epoch)
				}
			},
			"ending": func(*rapid.T) { h := holds[device()]; h.hold.Ending(); h.ending = true },
			"wanted": func(*rapid.T) { h := holds[device()]; h.hold.Wanted(); h.ending = false },
			"end": func(*rapid.T) {
				i := device()
				holds[i].hold.End()
				holds[i].held, holds[i].void = false, false
				if !of[i].any() {
					of[i].ends = 0
				}
			},
			"client recovers": func(t *rapid.T) {
				i := device()
				m := of[i]
				m.page.recover()
				m.settle(now, true)
				if epoch, _ := m.page.get(); epoch == 0 {
					return
				}
				leases.Tick(now)
				if m.any() && !m.overdue(nil) {
					t.Fatal("a recovered hold counts")
				}
				each(func(o *leaseModel) {
					if o != m && o.any() && !o.overdue(nil) {
						o.ends = now.Add(limit)
					}
				})
			},
			"": func(t *rapid.T) { each(func(m *leaseModel) { m.check(t, now) }) },
		})
	})
}

// A hung GPU: its lease runs out and stays ended, while the suspension of another GPU stays valid.
func TestHungGPUEndsOnlyItsLease(t *testing.T) {
	for _, own := range []int{0, 2} {
		t.Run(fmt.Sprint(own, " own leases"), func(t *testing.T) {
			shared, pages := &fakePage{}, [2]*fakePage{{}, {}}
			leases := NewLeases(shared, limit, own, func(i int, _ model.DeviceID) LeasePage { return pages[i] })
			hung, other := leases.Of(0).Hold(), leases.Of(1).Hold()
			now := model.Time(time.Hour)
			if !hung.Begin(now) || !other.Begin(now) {
				t.Fatal("no suspension")
			}
			hung.Ending() // its resume never returns
			for range 20 {
				now = now.Add(20 * time.Millisecond)
				leases.Tick(now)
			}
			if hung.Valid(now) {
				t.Error("the hung GPU's hold is valid")
			}
			if got := other.Valid(now); got != (own == 2) {
				t.Errorf("the other hold is valid: %v", got)
			}
			if got := other.Begin(now); got != (own == 2) {
				t.Errorf("a new suspension of the other: %v", got)
			}
			if own == 0 {
				if _, end := shared.get(); model.Time(end) > model.Time(time.Hour).Add(limit) {
					t.Error("the end of the shared lease moved")
				}
			}
		})
	}
}
