// SPDX-License-Identifier: Apache-2.0

package nvidia

import (
	"testing"
	"time"

	"xsched/internal/driver"
	"xsched/internal/driver/nvidia/abi"
	"xsched/internal/identity"
)

// A user's budget persists while any of its processes may draw on it.
func TestBudgetStaysWithItsSessions(t *testing.T) {
	d := &instance{budgets: map[identity.User]*budget{}, filesPerUID: 4}
	old := func() {
		for _, b := range d.budgets {
			b.asked = b.asked.Add(-2 * budgetAge)
		}
	}
	first := d.limits(identity.OnHost(1000))
	open := NewObjects(nil, first, &driver.Metrics{}) // no file received yet
	old()
	_ = d.limits(identity.OnHost(1001))
	if d.limits(identity.OnHost(1000)).Files != first.Files {
		t.Error("the user of an open session got a second share")
	}
	open.Close()
	asked := d.limits(identity.OnHost(1000)) // not used yet
	_ = d.limits(identity.OnHost(1001))
	if d.limits(identity.OnHost(1000)).Files != asked.Files {
		t.Error("a budget was dropped between request and use")
	}
	old()
	_ = d.limits(identity.OnHost(1002))
	if len(d.budgets) != 1 || time.Since(d.budgets[identity.OnHost(1002)].asked) > budgetAge {
		t.Errorf("%d budgets are kept", len(d.budgets))
	}
}

// TestObjectsOfOneUser: the programs of one user have a number of objects together, whatever each announces, and
// another user has its own. Objects that are freed make room.
func TestObjectsOfOneUser(t *testing.T) {
	d := &instance{budgets: map[identity.User]*budget{}, filesPerUID: 1 << 10}
	fill := func(uid int) (*Objects, int) {
		s := NewObjects(nil, d.limits(identity.OnHost(uid)), &driver.Metrics{})
		t.Cleanup(s.Close)
		f := NewFile(-1)
		s.clients[1] = &rmClient{handle: 1, file: f, objects: map[uint32]*object{}, below: map[uint32]map[uint32]*object{}}
		for h := range uint32(MaxRMObjects) {
			_ = s.Alloc(1, 1, 100+h, abi.NV01_DEVICE_0)
		}
		return s, s.count
	}
	all := 0
	var programs []*Objects
	for range 2 * maxUserObjects / MaxRMObjects {
		s, n := fill(1000)
		all, programs = all+n, append(programs, s)
	}
	if all != maxUserObjects {
		t.Errorf("one user has %d objects, want %d", all, maxUserObjects)
	}
	if _, n := fill(1001); n != MaxRMObjects {
		t.Errorf("another user has %d objects", n)
	}
	for h := range uint32(10) {
		programs[0].Free(1, 100+h)
	}
	if _, n := fill(1000); n != 10 {
		t.Errorf("%d of 10 free places are used", n)
	}
	for _, s := range programs {
		s.Close()
	}
	if n := d.budgets[identity.OnHost(1000)].handles.used.Load(); n != 10 {
		t.Errorf("%d objects are counted, want 10", n)
	}
}
