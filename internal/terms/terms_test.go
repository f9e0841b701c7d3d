// SPDX-License-Identifier: Apache-2.0

package terms

import (
	"errors"
	"testing"

	"xsched/internal/identity"
	"xsched/internal/model"
)

const gpu, otherGPU = model.DeviceID(1), model.DeviceID(2)

// hints makes a change of numbers by the names of the hints.
func hints(pairs ...any) (c model.HintChange) {
	for i := 0; i < len(pairs); i += 2 {
		c.Set(pairs[i].(string), model.HintValue{Number: int64(pairs[i+1].(int))})
	}
	return c
}

// The sources of a hint bind in this order: administrator, grant, rule, limit of the user, program.
func TestEffective(t *testing.T) {
	limits := Limits{Others: Limit{Priority: 10, Share: 40}}
	for name, test := range map[string]struct {
		options  Options
		queue    Queue
		priority model.Priority
		share    int
		cap      model.Priority
		pool     string
	}{
		"limit of the user":            {options: Options{Said: hints("priority", 50, "utilization", 90)}, priority: 10, share: 40, cap: 10},
		"no share is the largest":      {options: Options{Said: hints("priority", -5)}, priority: -5, share: 40, cap: 10},
		"a rule grants more":           {options: Options{Terms: Terms{Rule: "r", Hint: hints("priority", 30), Granted: 30}}, priority: 30, share: 40, cap: 30},
		"program over rule":            {options: Options{Said: hints("priority", 5), Terms: Terms{Rule: "r", Hint: hints("priority", 30), Granted: 30}}, priority: 5, share: 40, cap: 30},
		"control client over program":  {options: Options{Said: hints("priority", 5), Kept: Kept{Set: hints("priority", 7)}}, priority: 7, share: 40, cap: 10},
		"ceiling of the administrator": {options: Options{Said: hints("priority", 5), Kept: Kept{Ceiling: new(model.Priority(-20))}}, priority: -20, share: 40, cap: -20},
		"grant over limit":             {options: Options{Said: hints("priority", 60), Terms: Terms{Grant: Grant{Ceiling: new(model.Priority(50)), Share: 70, Pool: "p"}}}, priority: 50, share: 70, cap: 50, pool: "p"},
		"grant without a share":        {options: Options{Terms: Terms{Grant: Grant{Ceiling: new(model.Priority(50))}}}, share: 40, cap: 50, pool: model.PoolBestEffort},
		"administrator over grant":     {options: Options{Kept: Kept{Pinned: hints("utilization", 90)}, Terms: Terms{Grant: Grant{Share: 70, Pool: "p"}}}, share: 90, cap: 10},
		"GPU without a grant": {
			options:  Options{Said: hints("priority", 9), Terms: Terms{Grant: Grant{Share: 70, Pool: "p", Devices: []model.DeviceID{otherGPU}}}},
			priority: model.PriorityMin, cap: model.PriorityMin, pool: model.PoolBestEffort,
		},
		"stream": {options: Options{Said: hints("priority", 5)}, queue: Queue{Stream: true, Offset: -3}, priority: 2, share: 40, cap: 10},
		"stream of a program that never runs first": {
			options: Options{Said: hints("priority", int(model.PriorityNever))}, queue: Queue{Stream: true, Offset: 3}, priority: model.PriorityNever, share: 40, cap: 10,
		},
		"stream beyond the limit": {options: Options{Said: hints("priority", 9)}, queue: Queue{Stream: true, Offset: 8}, priority: 10, share: 40, cap: 10},
	} {
		t.Run(name, func(t *testing.T) {
			test.options.Book, test.options.User = NewBook(0, limits), identity.OnHost(1000)
			test.queue.Device = gpu
			p := New(test.options)
			p.Count(&test.queue, 1)
			h := p.Effective(&test.queue)
			if h.Priority != test.priority || h.Utilization != test.share || h.Cap != (model.Cap{On: true, Priority: test.cap}) || h.Pool != test.pool {
				t.Errorf("priority %d, share %d, cap %+v, pool %q", h.Priority, h.Utilization, h.Cap, h.Pool)
			}
			if h.PerQueue != test.queue.Stream {
				t.Errorf("scheduled queue by queue: %v", h.PerQueue)
			}
		})
	}
}

// A refused edit changes nothing, and what the administrator pinned outlives hints of the program.
func TestPinnedHints(t *testing.T) {
	p := New(Options{Book: NewBook(0, Limits{Others: Limit{Priority: model.PriorityMax}}), User: identity.OnHost(1000)})
	q := &Queue{Device: gpu}
	refusal := errors.New("no")
	for _, e := range []Edit{
		{Change: hints("priority", 3, "utilization", 30), Pins: true, Check: func(*model.Hint) error { return refusal }},
		{Change: hints("priority", 3, "utilization", 30), Pins: true},
	} {
		before := p.Effective(q)
		if _, err := p.EditProcess(&e); err != nil && p.Effective(q) != before {
			t.Errorf("a refused edit left %+v", p.Effective(q))
		}
	}
	change := hints("priority", 80, "utilization", 90)
	if note := p.Say(&change); note == "" || p.Effective(q).Priority != 3 || p.Effective(q).Utilization != 30 {
		t.Errorf("the program has %+v, note %q", p.Effective(q), note)
	}
	for _, e := range []Edit{{Change: hints("priority", 4)}, {Change: hints("utilization", 50)}} {
		if _, err := p.EditProcess(&e); !errors.Is(err, ErrPinned) {
			t.Errorf("edit %v of the process: %v", e.Change.Texts(), err)
		}
		if _, err := p.EditQueue(q, &e); !errors.Is(err, ErrPinned) || q.Separate() {
			t.Errorf("edit %v of the queue: %v", e.Change.Texts(), err)
		}
	}
	if k := p.Kept(); k.Empty() || *k.Ceiling != 3 || !k.Pinned.Has("utilization") {
		t.Errorf("kept %+v", k)
	}
}

// The engine learns of new terms only if they change a hint or a limit, and older terms are ignored.
func TestSetTerms(t *testing.T) {
	book := NewBook(0, Limits{Others: Limit{Priority: 10}})
	p := New(Options{Book: book, User: identity.OnHost(1000), Said: hints("priority", 50), Terms: Terms{Number: 1}})
	if p.ForEngine(); p.Note == "" || p.SetTerms(Terms{Number: 2}) {
		t.Errorf("equal terms are a change, note %q", p.Note)
	}
	if !p.SetTerms(Terms{Number: 3, Granted: 60}) || p.Hint.Priority != 50 || p.Note != "" {
		t.Errorf("a rule that grants 60 gives %d, note %q", p.Hint.Priority, p.Note)
	}
	if p.ForEngine(); p.SetTerms(Terms{Number: 2}) || p.Hint.Priority != 50 {
		t.Errorf("older terms give %d", p.Hint.Priority)
	}
	book.Replace(Limits{Others: Limit{Priority: 10, Share: 20}})
	if !p.SetTerms(p.Terms) || p.Hint.Utilization != 20 {
		t.Errorf("a new limit gives the share %d", p.Hint.Utilization)
	}
}

// Nobody joins the gang of another user by its name.
func TestGangOfUser(t *testing.T) {
	var said model.HintChange
	said.Set("gang", model.HintValue{Text: "g"})
	gang := func(uid int, owner string) string {
		p := New(Options{Book: NewBook(0, Limits{}), User: identity.OnHost(uid), Said: said, Terms: Terms{Grant: Grant{Owner: owner}}})
		return p.ForEngine().Gang
	}
	if gang(1, "") == gang(2, "") || gang(1, "ns/job") != gang(2, "ns/job") {
		t.Errorf("gangs %q %q, owned %q %q", gang(1, ""), gang(2, ""), gang(1, "ns/job"), gang(2, "ns/job"))
	}
}
