// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// ErrUnknown is returned by New for a name that is not in the registry.
var ErrUnknown = errors.New("unknown policy")

// entry is a policy of the registry. Numbers up to 11 are those of XSched's own
// tools; ours begin at 100.
type entry struct {
	number   int
	summary  string
	policy   erased
	strategy *Strategy
}

// registry has one line per policy.
func registry() map[string]entry {
	return map[string]entry{
		"HPF":  {1, "highest priority first", erase(HPF{}), nil},
		"HHPF": {2, "highest priority first, across the devices of a process", erase(HHPF{}), nil},
		"CHPF": {3, "highest priority first, by CPU nice value", erase(CHPF{}), nil},
		"UP":   {4, "shares by queue", erase(UP{}), nil},
		"PUP":  {5, "shares by process", erase(PUP{}), nil},
		"SPUP": {6, "shares by process, enforced as quotas", erase(SPUP{}), nil},
		"KEDF": {7, "K earliest deadlines at once", erase(KEDF{}), nil},
		"LAX":  {8, "least laxity first", erase(LAX{}), nil},
		"AWF":  {9, "active window first", erase(AWF{}), nil},
		"CFS":  {10, "weighted fair shares, short rounds", erase(CFS{}), nil},
		"MLFQ": {11, "multi-level feedback queue", erase(MLFQ{}), nil},
		"FIFO": {100, "first come, first served", erase(FIFO{}), nil},
		"RR":   {101, "round robin", erase(RR{}), nil},
		"EDF":  {102, "earliest deadline first", erase(EDF{}), nil},
		"SLO":  {103, "latency targets", erase(SLO{}), nil},
	}
}

// Names lists the known policies, sorted.
func Names() []string { return slices.Sorted(maps.Keys(registry())) }

// lookup finds a policy by name, ignoring case: NAME, or NAME/STRATEGY (launch_bound.go).
func lookup(name string, more Strategies) (string, entry) {
	base, strategy, chosen := strings.Cut(name, "/")
	for known, e := range registry() {
		switch {
		case !strings.EqualFold(known, base):
		case !chosen:
			return known, e
		default:
			return e.with(known, strategy, more)
		}
	}
	return "", entry{}
}

// Base returns a policy's name without its strategy.
func Base(name string) string {
	base, _, _ := strings.Cut(name, "/")
	return base
}

// Suggest lists what to use instead of an unknown name: policies, or strategies of
// the policy that it names.
func Suggest(name string) []string {
	base, e := lookup(Base(name), nil)
	if _, has := e.policy.impl.(strategist); !has {
		return Names()
	}
	out := []string{base}
	for _, s := range slices.Sorted(maps.Keys(strategies)) {
		out = append(out, base+"/"+s)
	}
	return out
}

// Remedy is what to do about an unknown name.
func Remedy(name string) string {
	switch near := nearest(name); len(near) {
	case 0:
		return "use one of " + strings.Join(Suggest(name), ", ")
	case 1:
		return "use " + near[0]
	default:
		return "use one of " + strings.Join(near, ", ")
	}
}

// nearest returns the names that a typing error may have made an unknown name from.
func nearest(name string) (near []string) {
	if strings.HasSuffix(name, "/") {
		return nil // asks for the strategies
	}
	most := max(1, len(name)/3)
	for _, known := range Suggest(name) {
		switch d := typos(strings.ToLower(name), strings.ToLower(known)); {
		case d < most:
			near, most = []string{known}, d
		case d == most:
			near = append(near, known)
		}
	}
	return near
}

// typos counts the typing errors between two words: letters that are missing, added, wrong, or swapped with
// the next one.
func typos(a, b string) int {
	var before, last, row []int
	for i := 0; i <= len(a); i++ {
		before, last, row = last, row, make([]int, len(b)+1)
		for j := range row {
			if i == 0 || j == 0 {
				row[j] = i + j
				continue
			}
			wrong := 1
			if a[i-1] == b[j-1] {
				wrong = 0
			}
			row[j] = min(last[j]+1, row[j-1]+1, last[j-1]+wrong)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
	}
	return row[len(b)]
}

// Number returns the number of a policy, 0 for an unknown one.
func Number(name string) int {
	_, e := lookup(name, nil)
	return e.number
}

// Summary returns a short description of a policy, "" for an unknown one.
func Summary(name string) string {
	_, e := lookup(name, nil)
	return e.summary
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

// New returns the policy of that name, ignoring case, with the starvation bound
// and group scheduling applied.
func New(name string) (*Scheduler, error) { return NewWith(name, nil) }

// NewWith is New with further strategies.
func NewWith(name string, more Strategies) (*Scheduler, error) {
	known, e := lookup(name, more)
	if known == "" {
		return nil, unknownError{name}
	}
	s := &Scheduler{name: known, policy: e.policy, strategy: e.strategy}
	s.ranker, _ = e.policy.impl.(Ranker)
	return s, nil
}

// unknownError names the unknown policy and the known ones.
type unknownError struct{ name string }

func (e unknownError) Error() string {
	if near := nearest(e.name); len(near) == 1 {
		return fmt.Sprintf("%v %q; use %s", ErrUnknown, e.name, near[0])
	}
	return fmt.Sprintf("%v %q: known are %s", ErrUnknown, e.name, strings.Join(Suggest(e.name), ", "))
}

func (e unknownError) Unwrap() error { return ErrUnknown }
