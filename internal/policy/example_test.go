// SPDX-License-Identifier: Apache-2.0

package policy_test

import (
	"errors"
	"fmt"

	"xsched/internal/policy"
)

// The registry finds policies by name, in any case, and knows upstream's numbers.
func ExampleNew() {
	p, err := policy.New("hpf")
	fmt.Println(p.Name(), err)
	_, err = policy.New("nonsense")
	fmt.Println(errors.Is(err, policy.ErrUnknown))
	fmt.Println(policy.NameOf(6), policy.Number("SPUP"))
	// Output:
	// HPF <nil>
	// true
	// SPUP 6
}

func ExampleSummary() {
	for _, name := range policy.Names()[:3] {
		fmt.Printf("%-4s %s\n", name, policy.Summary(name))
	}
	// Output:
	// AWF  active window first
	// CFS  weighted fair shares, short rounds
	// CHPF highest priority first, by CPU nice value
}
