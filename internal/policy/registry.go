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

// registry has one line a policy.
func registry() map[string]func() Policy {
	return map[string]func() Policy{
		"FIFO": func() Policy { return FIFO{} },
		"HPF":  func() Policy { return HPF{} },
	}
}

// Names lists the known policies, sorted.
func Names() []string { return slices.Sorted(maps.Keys(registry())) }

// New returns the policy of that name, in any case of letters, with the
// starvation guard around it.
func New(name string) (Policy, error) {
	for known, build := range registry() {
		if strings.EqualFold(known, name) {
			return guarded{build()}, nil
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
