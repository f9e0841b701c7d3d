// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// ErrUnknown is what New returns for a name that is not in the registry.
var ErrUnknown = errors.New("unknown policy")

// entry is a policy of the registry. Numbers up to 11 are those that XSched's own tools
// use; ours begin at 100.
type entry struct {
	number int
	build  func() Policy
}

// registry has one line a policy.
func registry() map[string]entry {
	return map[string]entry{
		"HPF":  {1, func() Policy { return HPF{} }},
		"HHPF": {2, func() Policy { return HHPF{} }},
		"CHPF": {3, func() Policy { return CHPF{} }},
		"UP":   {4, func() Policy { return UP{} }},
		"PUP":  {5, func() Policy { return PUP{} }},
		"SPUP": {6, func() Policy { return SPUP{} }},
		"KEDF": {7, func() Policy { return KEDF{} }},
		"LAX":  {8, func() Policy { return LAX{} }},
		"AWF":  {9, func() Policy { return AWF{} }},
		"CFS":  {10, func() Policy { return CFS{} }},
		"MLFQ": {11, func() Policy { return MLFQ{} }},
		"FIFO": {100, func() Policy { return FIFO{} }},
		"RR":   {101, func() Policy { return RR{} }},
		"EDF":  {102, func() Policy { return EDF{} }},
		"SLO":  {103, func() Policy { return SLO{} }},
	}
}

// Names lists the known policies, sorted.
func Names() []string { return slices.Sorted(maps.Keys(registry())) }

// Number returns the number of a policy, 0 for an unknown one.
func Number(name string) int {
	for known, e := range registry() {
		if strings.EqualFold(known, name) {
			return e.number
		}
	}
	return 0
}

// NameOf returns the name of the policy with that number, "" if there is none.
func NameOf(number int) string {
	for known, e := range registry() {
		if e.number == number {
			return known
		}
	}
	return ""
}

// New returns the policy of that name, in any case of letters, with the
// starvation guard and the groups around it.
func New(name string) (*Scheduler, error) {
	for known, e := range registry() {
		if strings.EqualFold(known, name) {
			return newScheduler(e.build()), nil
		}
	}
	return nil, unknownError{name}
}

// unknownError names what was asked for and what could have been.
type unknownError struct{ name string }

func (e unknownError) Error() string {
	return fmt.Sprintf("%v %q: known are %s", ErrUnknown, e.name, strings.Join(Names(), ", "))
}

func (e unknownError) Unwrap() error { return ErrUnknown }
