// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"xsched/internal/model"
	"xsched/internal/policy"
)

// Policies returns upstream's policies; their numbers start at 1.
func Policies() []string {
	return []string{"HPF", "HHPF", "CHPF", "UP", "PUP", "SPUP", "KEDF", "LAX", "AWF", "CFS", "MLFQ"}
}

// OwnPolicies returns the policies that only this daemon has.
func OwnPolicies() []string {
	return slices.DeleteFunc(policy.Names(), func(name string) bool { return slices.Contains(Policies(), name) })
}

// PolicyNumber returns the number of a policy, upstream's or ours, ignoring case.
func PolicyNumber(name string) (int, error) {
	for i, n := range Policies() {
		if strings.EqualFold(n, name) {
			return i + 1, nil
		}
	}
	if n := policy.Number(name); n != 0 {
		return n, nil
	}
	return 0, errors.New("invalid policy name: " + strconv.Quote(name))
}

// PolicyName is the inverse of PolicyNumber; it returns "" for an unknown number.
func PolicyName(number int) string {
	if all := Policies(); number >= 1 && number <= len(all) {
		return all[number-1]
	}
	return policy.NameOf(number)
}

// PolicyReply is the reply of GET /policy. Upstream's server has no name, and upstream's tools know
// only the numbers of upstream's policies.
type PolicyReply struct {
	Number int    `json:"policy"`
	Name   string `json:"name,omitempty"` // of this daemon's policy
}

// PolicyReplyOf returns the reply for a policy: its own number where upstream has it, else that of
// upstream's nearest one.
func PolicyReplyOf(name string) PolicyReply {
	number := policy.Number(name)
	if near := Nearest(name); near != "" {
		number = policy.Number(near)
	}
	return PolicyReply{Number: number, Name: name}
}

// Text returns the name to show; "" for an unknown policy.
func (r PolicyReply) Text() string {
	if r.Name != "" {
		return r.Name
	}
	return PolicyName(r.Number)
}

// Nearest returns upstream's policy that is nearest to one that only this daemon has; "" for all
// others.
func Nearest(name string) string {
	return map[string]string{
		"FIFO": "HPF",  // the first to arrive has the highest priority
		"RR":   "PUP",  // equal shares, in turns
		"EDF":  "KEDF", // K is 1
		"SLO":  "HPF",  // the program with a target has the highest priority
	}[name]
}

// ClampTimeslice returns the nearest timeslice that this daemon can set, in microseconds, and a note if
// that is another one.
func ClampTimeslice(us int64) (set int64, note string) {
	least, most := model.TimesliceMin.Microseconds(), model.TimesliceMax.Microseconds()
	switch set = min(max(us, least), most); {
	case us < least:
		note = fmt.Sprintf("timeslice %d us is below the minimum; set to %d us", us, set)
	case us > most:
		note = fmt.Sprintf("timeslice %d us is above the maximum; set to %d us", us, set)
	}
	return set, note
}
