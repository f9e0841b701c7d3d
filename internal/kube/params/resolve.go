// SPDX-License-Identifier: Apache-2.0

package params

import (
	"fmt"
	"slices"
	"strings"
	"time"

	resourceapi "k8s.io/api/resource/v1"
)

// Resolved are the parameters of a claim. Zero values mean: none.
type Resolved struct {
	Priority      int32
	Share         int
	LatencyTarget time.Duration
	Level         int
	Group         string
}

// Resolve returns what a claim gets from its class and from itself. Later parameters of the class
// replace earlier ones field by field. Parameters of the claim must not raise it.
func Resolve(class, claim []Parameters) (Resolved, error) {
	r := Resolved{Priority: DefaultPriority}
	for i := range class {
		r.set(&class[i])
	}
	for i := range claim {
		if err := r.permit(&claim[i]); err != nil {
			return Resolved{}, err
		}
		r.set(&claim[i])
	}
	return r, nil
}

// Of resolves the configurations of a request for a driver. Those of a main request hold for its subrequests.
func Of(driver string, configs []resourceapi.DeviceAllocationConfiguration, request string) (Resolved, error) {
	main, _, _ := strings.Cut(request, "/")
	var class, claim []Parameters
	for i := range configs {
		c := &configs[i]
		if c.Opaque == nil || c.Opaque.Driver != driver ||
			len(c.Requests) > 0 && !slices.Contains(c.Requests, request) && !slices.Contains(c.Requests, main) {
			continue
		}
		p, err := Parse(c.Opaque.Parameters.Raw)
		switch {
		case err != nil && c.Source == resourceapi.AllocationConfigSourceClass:
			return Resolved{}, fmt.Errorf("device class: %w", err)
		case err != nil:
			return Resolved{}, err
		case c.Source == resourceapi.AllocationConfigSourceClass:
			class = append(class, p)
		default: // an unknown source has the rights of a tenant
			claim = append(claim, p)
		}
	}
	return Resolve(class, claim)
}

func (r *Resolved) set(p *Parameters) {
	if p.Priority != nil {
		r.Priority = *p.Priority
	}
	if p.Share != nil {
		r.Share = *p.Share
	}
	if p.LatencyTarget != nil {
		r.LatencyTarget = time.Duration(*p.LatencyTarget)
	}
	if p.Level != nil {
		r.Level = *p.Level
	}
	if p.Group != nil {
		r.Group = *p.Group
	}
}

// permit refuses parameters of a claim that ask for more than its class gives.
func (r *Resolved) permit(p *Parameters) error {
	const remedy = "lower it, or ask for another device class"
	switch {
	case p.Priority != nil && *p.Priority > r.Priority:
		return refuse(remedy, "priority %d of the claim is above the %d of its device class", *p.Priority, r.Priority)
	case p.Share != nil && r.Share == 0:
		return refuse("request capacity share instead", "the device class gives no share, and the claim sets %d", *p.Share)
	case p.Share != nil && (*p.Share > r.Share || *p.Share == 0):
		return refuse(remedy, "share %d of the claim is not within the %d of its device class", *p.Share, r.Share)
	case p.LatencyTarget != nil && r.LatencyTarget == 0:
		return refuse("ask for another device class", "the device class has no latency target, and the claim sets %s", time.Duration(*p.LatencyTarget))
	case p.LatencyTarget != nil && time.Duration(*p.LatencyTarget) < r.LatencyTarget:
		return refuse("use a longer one, or ask for another device class", "latency target %s of the claim is below the %s of its device class", time.Duration(*p.LatencyTarget), r.LatencyTarget)
	case p.Level != nil && *p.Level != r.Level:
		// A low level spares a program from being preempted in mid-kernel, a high one needs the GPU's
		// support: neither is for the tenant to choose.
		return refuse("leave it out", "level %d of the claim differs from the %d of its device class", *p.Level, r.Level)
	case p.Group != nil && r.Group != "" && *p.Group != r.Group:
		return refuse("leave it out", "group %q of the claim differs from %q of its device class", *p.Group, r.Group)
	}
	return nil
}
