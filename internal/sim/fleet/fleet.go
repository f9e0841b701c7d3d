// SPDX-License-Identifier: Apache-2.0

// Package fleet simulates days of a cluster: pods of services and batch jobs arrive, Kubernetes'
// allocation rules place them on GPUs, and the way of sharing decides how fast they run.
//
// It has two levels, because no computer simulates every kernel of 8,000 GPUs. The engine and its
// policy run in internal/sim on a grid of mixes of tenants on one GPU (tabulate.go); the result is
// outcomes.csv. The fleet is a discrete-event simulation over placements (run.go, place.go) that
// looks up the outcome of every GPU's present mix.
package fleet

import "fmt"

// Sharing is how tenants share a GPU.
type Sharing string

// The ways to share.
const (
	Exclusive   Sharing = "exclusive"    // one pod per GPU
	TimeSlicing Sharing = "time-slicing" // the driver's own turns
	MPS         Sharing = "MPS"          // with client priorities
	XSched      Sharing = "XSched"       // HPF in mode live
)

// Sharings lists all ways to share.
func Sharings() []Sharing { return []Sharing{Exclusive, TimeSlicing, MPS, XSched} }

// ParseSharing returns a way to share by its name.
func ParseSharing(name string) (Sharing, error) {
	for _, s := range Sharings() {
		if string(s) == name {
			return s, nil
		}
	}
	return "", fmt.Errorf("unknown mode %q; use all, exclusive, time-slicing, MPS or XSched", name)
}

// policy is the name of the policy in internal/sim.
func (s Sharing) policy() string {
	if s == XSched {
		return "HPF"
	}
	return "native"
}
