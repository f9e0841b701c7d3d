// SPDX-License-Identifier: Apache-2.0

package terms

import (
	"errors"
	"testing"

	"xsched/internal/identity"
	"xsched/internal/model"
)

const mib = 1 << 20

// The quota of a rule is a maximum, which the program and its user can lower. The administrator and a grant go
// before it.
func TestMemory(t *testing.T) {
	for name, test := range map[string]struct {
		options Options
		want    model.Bytes
	}{
		"none":                    {},
		"program":                 {Options{Said: hints("memory", 5*mib)}, 5 * mib},
		"rule":                    {Options{Terms: Terms{Rule: "r", Hint: hints("memory", 8*mib)}}, 8 * mib},
		"program below the rule":  {Options{Said: hints("memory", 5*mib), Terms: Terms{Rule: "r", Hint: hints("memory", 8*mib)}}, 5 * mib},
		"program above the rule":  {Options{Said: hints("memory", 9*mib), Terms: Terms{Rule: "r", Hint: hints("memory", 8*mib)}}, 8 * mib},
		"no quota under a rule":   {Options{Said: hints("memory", 0), Terms: Terms{Rule: "r", Hint: hints("memory", 8*mib)}}, 8 * mib},
		"administrator over rule": {Options{Kept: Kept{Pinned: hints("memory", 90*mib)}, Terms: Terms{Rule: "r", Hint: hints("memory", 8*mib)}}, 90 * mib},
		"grant over program":      {Options{Said: hints("memory", 90*mib), Terms: Terms{Grant: Grant{Pinned: hints("memory", 8*mib)}}}, 8 * mib},
	} {
		test.options.Book, test.options.User = NewBook(0, Limits{Others: Limit{Priority: model.PriorityMax}}), identity.OnHost(1000)
		p := New(test.options)
		if p.Hint.Memory != test.want {
			t.Errorf("%s: %v, want %v", name, p.Hint.Memory, test.want)
		}
	}
}

func TestMemoryEdits(t *testing.T) {
	rule := Terms{Rule: "r", Hint: hints("memory", 8*mib)}
	p := New(Options{Book: NewBook(0, Limits{Others: Limit{Priority: model.PriorityMax}}), User: identity.OnHost(1000), Terms: rule})
	edit := func(bytes int, pins bool) error {
		_, err := p.EditProcess(&Edit{Change: hints("memory", bytes), Pins: pins})
		return err
	}
	if err := edit(9*mib, false); !errors.Is(err, ErrPinned) || p.Hint.Memory != 8*mib {
		t.Errorf("above the rule: %v, %v", err, p.Hint.Memory)
	}
	if err := edit(3*mib, false); err != nil || p.Hint.Memory != 3*mib {
		t.Errorf("below the rule: %v, %v", err, p.Hint.Memory)
	}
	if err := edit(0, false); err != nil || p.Hint.Memory != 8*mib {
		t.Errorf("back to the rule: %v, %v", err, p.Hint.Memory)
	}
	if err := edit(9*mib, true); err != nil || p.Hint.Memory != 9*mib {
		t.Errorf("by the administrator: %v, %v", err, p.Hint.Memory)
	}
	change := hints("memory", 90*mib)
	if p.Say(&change); p.Hint.Memory != 9*mib {
		t.Errorf("the program raised it to %v", p.Hint.Memory)
	}
	p.SetTerms(Terms{Number: 1})
	if p.Hint.Memory != 9*mib {
		t.Errorf("without the rule: %v", p.Hint.Memory)
	}
}
