// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"maps"
	"slices"

	"xsched/internal/control"
	"xsched/internal/identity"
)

// maxPastPods bounds the names of pods without a grant. Containers count, too.
const maxPastPods = 2 * control.MaxGrants

// pastPods are the names of pods whose grants have ended. A change makes a new value.
type pastPods struct {
	names map[identity.Pod]string
	order []identity.Pod // oldest first
}

// after returns the names after a change of grants.
func (p pastPods) after(old, now *grants) pastPods {
	var ended []identity.Pod
	for of, pod := range old.pods {
		if _, lives := now.pods[of]; !lives && p.names[of] != pod.name() {
			ended = append(ended, of)
		}
	}
	if len(ended) == 0 {
		return p
	}
	out := pastPods{maps.Clone(p.names), slices.Clone(p.order)}
	if out.names == nil {
		out.names = map[identity.Pod]string{}
	}
	for _, of := range ended {
		if _, known := out.names[of]; !known {
			out.order = append(out.order, of)
		}
		pod := old.pods[of]
		out.names[of] = pod.name()
	}
	for len(out.order) > maxPastPods {
		delete(out.names, out.order[0])
		out.order = out.order[1:]
	}
	return out
}
