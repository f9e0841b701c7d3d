// SPDX-License-Identifier: Apache-2.0

package identity

import (
	"path"
	"regexp"
	"strings"
)

// Pod is a Kubernetes pod, and one of its containers.
type Pod struct {
	UID       string // as PodUID returns it; empty: not in a pod
	Container string // 64 hexadecimal digits; empty: unknown
}

// Whole returns the pod without a container.
func (p Pod) Whole() Pod { return Pod{UID: p.UID} }

var (
	// The kubelet's names of pods, with its cgroup drivers cgroupfs and systemd. A static pod has 32
	// digits without hyphens. Nodes of kind have the cgroup root "kubelet".
	podElement = regexp.MustCompile(`^(?:(?:kubelet-)?kubepods[a-z-]*-)?pod([0-9a-f]{8}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{12}|[0-9a-f]{32})(?:\.slice)?$`)
	podUID     = regexp.MustCompile(`^(?:[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|[0-9a-f]{32})$`)

	// The elements above a pod, as a daemon in a cgroup namespace sees them.
	abovePod = regexp.MustCompile(`^(?:|\.\.|kubelet(?:\.slice)?|(?:kubelet-)?kubepods(?:-burstable|-besteffort)?(?:\.slice)?|burstable|besteffort)$`)

	containerElement = regexp.MustCompile(`^(?:[a-z][a-z.-]*-)?([0-9a-f]{64})(?:\.scope)?$`)
	containerID      = regexp.MustCompile(`^[0-9a-f]{64}$`)
)

// PodUID returns a pod's UID in its one form, with lower case and hyphens; empty: text is none.
func PodUID(text string) string {
	if len(text) > 64 {
		return ""
	}
	text = strings.ReplaceAll(strings.ToLower(text), "_", "-")
	if !podUID.MatchString(text) {
		return ""
	}
	return text
}

// IsContainerID reports whether a text is the id of a container.
func IsContainerID(text string) bool { return containerID.MatchString(text) }

// podOf returns the pod in a cgroup path. It must be the outermost container: a pod that runs containers
// itself, or the node of a cluster in a container, chooses the names below.
func podOf(p string) Pod {
	var pod Pod
	for element := range strings.SplitSeq(p, "/") {
		if pod.UID != "" {
			// The runtime creates containers directly below the pod.
			if m := containerElement.FindStringSubmatch(element); m != nil && !monitorName.MatchString(element) {
				pod.Container = m[1]
			}
			return pod
		}
		if !isContainer(element) {
			continue
		}
		m := podElement.FindStringSubmatch(element)
		if m == nil {
			return Pod{}
		}
		pod.UID = strings.ReplaceAll(m[1], "_", "-")
	}
	return pod
}

// pod returns the pod of a process, as far as only root could create its cgroup.
func (o *observer) pod(all []hierarchy) Pod {
	for _, h := range all {
		if outer, _ := containers(h.path); outer != "" && o.createdByRoot(h, outer) && (o.seesFolders(h, outer) || belowKubelet(outer)) {
			return podOf(h.path)
		}
	}
	return Pod{}
}

// belowKubelet reports whether all elements above a pod are the kubelet's. Where the daemon can't see the
// owner of a cgroup, anyone with a delegated cgroup could choose the name of another's pod.
func belowKubelet(pod string) bool {
	for element := range strings.SplitSeq(path.Dir(pod), "/") {
		if !abovePod.MatchString(element) {
			return false
		}
	}
	return true
}

// PodVariable has the UID of the pod of a daemon. In a cgroup namespace the kernel does not show
// it.
const PodVariable = "XSCHED_POD_UID"

// sibling reports whether a container belongs to the daemon's own pod. The containers of one pod are
// deployed and trusted together. inPod: the daemon knows that it runs in a pod.
func sibling(own, other string, inPod bool) bool {
	if below, ok := strings.CutPrefix(other, "/../"); ok && own == "" {
		return inPod && containerElement.MatchString(below) // its parent is the daemon's parent
	}
	outer, inner := containers(own)
	theirs, element := containers(other)
	return outer != "" && inner != outer && outer == theirs && podOf(own).UID != "" &&
		containerElement.MatchString(strings.TrimPrefix(element, outer+"/"))
}
