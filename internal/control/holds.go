// SPDX-License-Identifier: Apache-2.0

package control

import (
	"time"

	"xsched/internal/model"
)

// Bounds of holds.
const (
	MaxHolds       = 256 // of all sources together
	MaxHoldSources = 8
	// MaxHoldAhead is the longest time until a hold ends. Its source renews it while it is needed, so
	// that a source which has died leaves nobody suspended.
	MaxHoldAhead = 30 * time.Second
)

// Hold suspends the programs of a group of pods between two moments, together with those of other
// nodes. It is apart from Control.Suspend: neither lifts the other.
type Hold struct {
	Namespace string `json:"namespace"`
	Group     string `json:"group"`
	// Priority spares the pods that were granted a higher priority; nil: all are held.
	Priority *int32 `json:"priority,omitempty"`
	// FromNS and UntilNS are moments of the wall clock, in nanoseconds since 1970.
	FromNS  int64 `json:"from_ns"`
	UntilNS int64 `json:"until_ns"`
}

// HoldsRequest replaces all holds of a source; an empty source only reads.
type HoldsRequest struct {
	Source string `json:"-"` // part of the path
	Holds  []Hold `json:"holds"`
}

// HoldEntry is a hold that has not ended.
type HoldEntry struct {
	Source string `json:"source"`
	Hold
	Held bool `json:"held"` // it has begun
}

// HoldsReply has the holds of all sources.
type HoldsReply struct {
	Holds []HoldEntry `json:"holds"`
}

// Check returns why the request is refused. Nothing of a refused request is applied.
func (r *HoldsRequest) Check(now time.Time) error {
	if !grantSource.MatchString(r.Source) {
		return Errorf(ErrInvalid, "use lower-case letters, digits and -, at most 32", "%q is not the name of a source", r.Source)
	}
	if len(r.Holds) > MaxHolds {
		return Errorf(ErrInvalid, "", "%d holds are too many: at most %d are possible", len(r.Holds), MaxHolds)
	}
	for i := range r.Holds {
		h := &r.Holds[i]
		switch {
		case !dnsLabel.MatchString(h.Namespace):
			return Errorf(ErrInvalid, "use the name of a namespace", "%.64q is not a namespace", h.Namespace)
		case h.Group == "" || model.FieldOf("gang").Check(model.HintValue{Text: h.Group}) != nil:
			return Errorf(ErrInvalid, "use a name as in a grant", "%.64q is not the name of a group", h.Group)
		case h.UntilNS < h.FromNS:
			return Errorf(ErrInvalid, "", "the hold of %s/%s ends before it begins", h.Namespace, h.Group)
		case h.UntilNS > now.Add(MaxHoldAhead).UnixNano():
			return Errorf(ErrInvalid, "renew it while it is needed", "the hold of %s/%s is too long: at most %s are possible", h.Namespace, h.Group, MaxHoldAhead)
		}
	}
	return nil
}
