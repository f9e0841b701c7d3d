// SPDX-License-Identifier: Apache-2.0

package identity

import (
	"path"
	"regexp"
	"slices"
	"strings"
)

// hierarchy is one line of /proc/PID/cgroup: the path of the process in one cgroup hierarchy.
type hierarchy struct {
	// name is empty for cgroup v2, else the controllers ("cpu,cpuacct") or "name=systemd".
	name string
	path string
}

// maxHierarchies bounds a process's lines. The kernel has about 14 controllers.
const maxHierarchies = 64

// parseCgroups reads /proc/PID/cgroup. cgroup v2 comes first, then systemd's own hierarchy: the
// controllers of cgroup v1 may be disabled one by one.
func parseCgroups(text string) []hierarchy {
	var out []hierarchy
	for line := range strings.Lines(text) {
		number, rest, ok := strings.Cut(strings.TrimSuffix(line, "\n"), ":")
		name, p, ok2 := strings.Cut(rest, ":")
		if !ok || !ok2 || !strings.HasPrefix(p, "/") || (name == "") != (number == "0") || len(out) == maxHierarchies {
			continue
		}
		out = append(out, hierarchy{name, p})
	}
	slices.SortStableFunc(out, func(a, b hierarchy) int { return a.rank() - b.rank() })
	return out
}

func (h hierarchy) rank() int {
	switch h.name {
	case "":
		return 0
	case "name=systemd":
		return 1
	}
	return 2
}

// containerNames match one element of a cgroup path that stands for a container or a pod. Sources of
// the names: runc's and crun's cgroup managers, podman, CRI-O, the kubelet, systemd-nspawn, LXC.
var containerNames = []*regexp.Regexp{
	// A container id as 64 hexadecimal digits: alone, or as PREFIX-ID.scope. Prefixes are docker,
	// cri-containerd, nerdctl, crio, libpod; the monitors conmon have their own, and run on the host.
	regexp.MustCompile(`^(?:[a-z][a-z.-]*-)?[0-9a-f]{64}(?:\.scope)?$`),
	podElement,
	regexp.MustCompile(`^machine-.+\.scope$`),
	regexp.MustCompile(`^systemd-nspawn@.+\.service$`),
	regexp.MustCompile(`^lxc\.payload\..+$`),
}

var monitorName = regexp.MustCompile(`-?conmon-`)

// isContainer reports whether an element of a cgroup path stands for a container.
func isContainer(element string) bool {
	return slices.ContainsFunc(containerNames, func(r *regexp.Regexp) bool { return r.MatchString(element) }) &&
		!monitorName.MatchString(element)
}

// containers returns the paths of the outermost and the innermost container in a cgroup path; both
// are empty if there is none. Containers nest: a container runtime may itself run in a container.
func containers(p string) (outer, inner string) {
	at := 0
	for element := range strings.SplitSeq(p, "/") {
		at += len(element) + 1
		if isContainer(element) || element != "" && path.Base(p[:at-len(element)-1]) == "lxc.payload" {
			inner = p[:at-1]
			if outer == "" {
				outer = inner
			}
		}
	}
	return outer, inner
}

// label returns the container's name as User.Container. Equal paths in different hierarchies may have
// different owners, so a hierarchy of cgroup v1 is part of the name.
func (h hierarchy) label(p string) string {
	if p == "" || h.name == "" {
		return p
	}
	return h.name + ":" + p
}

// outermost returns the outermost container of User.Container.
func outermost(container string) string {
	name, p, ok := strings.Cut(container, ":/")
	if !ok {
		if outer, _ := containers(container); outer != "" {
			return outer
		}
		return container
	}
	if outer, _ := containers("/" + p); outer != "" {
		return name + ":" + outer
	}
	return container
}

// userManager matches the cgroup below which a user's own service manager creates cgroups.
var userManager = regexp.MustCompile(`/user@\d+\.service(?:/|$)`)
