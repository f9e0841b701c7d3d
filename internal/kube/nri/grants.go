// SPDX-License-Identifier: Apache-2.0

package nri

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/containerd/nri/pkg/api"
	corev1 "k8s.io/api/core/v1"

	"xsched/internal/control"
	"xsched/internal/kube/classes"
	"xsched/internal/kube/cluster"
	"xsched/internal/kube/edits"
)

// maxGrants bounds the grants of this source. The daemon's bound is for all sources.
const maxGrants = control.MaxGrants / 2

// claimDevice is how the name of a claim's CDI device starts. The claim's UID follows.
const claimDevice = cluster.Driver + "/claim="

// container is a container that the runtime has.
type container struct {
	id, name string
	sandbox  string      // its id
	pod      *corev1.Pod // as the runtime knows it
	claims   []string    // UIDs
	devices  bool        // has CDI devices
	edited   bool        // can reach the daemon
	disabled bool        // switched the shim off

	// After the container is registered, only the publisher uses these.
	listed bool   // was there before the plugin, and its pod got the event
	told   string // last event
}

// newContainer reads a container.
func newContainer(s *api.PodSandbox, c *api.Container) *container {
	out := &container{
		id: c.GetId(), name: c.GetName(), sandbox: c.GetPodSandboxId(), pod: sandboxPod(s),
		devices: len(c.GetCDIDevices()) > 0, disabled: getenv(c.GetEnv(), disableVariable) == "1",
		edited: mountAt(c, edits.Client) != nil,
	}
	for _, d := range c.GetCDIDevices() {
		if device, ok := strings.CutPrefix(d.GetName(), claimDevice); ok {
			out.claims = append(out.claims, device)
		}
	}
	return out
}

// grants returns the grants of a container. A claim decides before a label. A container without a class
// is named if it can reach the daemon or has devices; others can't become tenants, and naming them would
// write the daemon's state for each job that has nothing to do with a GPU.
func (c *container) grants(pod *corev1.Pod, d classes.Decision, claims func(device string) []control.Grant) []control.Grant {
	named := control.Grant{
		ID: c.id, Namespace: c.pod.Namespace, Pod: c.pod.Name, PodUID: string(c.pod.UID), Container: c.name, ContainerID: c.id,
	}
	var out []control.Grant // at most one: the strictest of all claims
	for _, device := range c.claims {
		for _, g := range claims(device) {
			foreign := g.Namespace != c.pod.Namespace
			g.ID = c.id
			g.Namespace, g.Pod, g.PodUID, g.Container, g.ContainerID = named.Namespace, named.Pod, named.PodUID, named.Container, named.ContainerID
			switch {
			case foreign: // a pod can name the CDI device of any claim in an annotation
			case g.Check() != nil: // one bad grant would refuse all
			case len(out) == 0:
				out = append(out, g)
			default:
				out[0] = control.Strictest(out[0], g)
			}
		}
	}
	if len(out) > 0 {
		return out
	}
	has := d.Outcome == classes.Granted || d.Outcome == classes.Default
	switch {
	case len(c.claims) == 0 && has && !c.disabled && (c.edited || selected(pod, c, d.Outcome)):
		full := named
		full.Class, full.Group = d.Name, group(pod)
		full.Priority, full.Utilization, full.Level = d.Class.Priority, d.Class.Share, d.Class.Level
		if t := d.Class.LatencyTarget; t != nil {
			us := time.Duration(*t).Microseconds()
			full.LatencyTargetUS = &us
		}
		if d.Class.Group != nil {
			full.Group = *d.Class.Group
		}
		if full.Check() == nil { // one bad grant would refuse all
			return []control.Grant{full}
		}
	case !c.edited && !hasDevices(pod, c):
		return nil
	}
	if named.Check() != nil {
		return nil
	}
	return []control.Grant{named}
}

// bounded sorts grants and drops those beyond the bound, mere names first. It reports how many.
func bounded(all []control.Grant) ([]control.Grant, int) {
	slices.SortFunc(all, func(a, b control.Grant) int { return cmp.Compare(a.ID, b.ID) })
	if len(all) <= maxGrants {
		return all, 0
	}
	slices.SortStableFunc(all, func(a, b control.Grant) int { return cmp.Compare(rank(a), rank(b)) })
	return all[:maxGrants], len(all) - maxGrants
}

func rank(g control.Grant) int {
	if g.Class == "" {
		return 1
	}
	return 0
}
