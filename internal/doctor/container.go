// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"fmt"
	"os"
)

// The initial namespaces of Linux, as in /proc/PID/ns. Every other one has another number.
var initialNamespaces = map[string]uint32{"cgroup": 0xEFFFFFFB, "pid": 0xEFFFFFFC, "uts": 0xEFFFFFFE, "ipc": 0xEFFFFFFF}

// inContainer reports whether this is a container. The marks alone prove nothing: a host that was made
// from an image of a container still has them. Such a host has the initial namespaces, and a container
// has at least one of its own, also with the host's processes or network.
func (e *examination) inContainer() bool {
	marked := e.Getenv("container") != "" || e.Getenv("KUBERNETES_SERVICE_HOST") != ""
	for _, name := range []string{".dockerenv", "run/.containerenv"} {
		_, err := os.Stat(e.path(name))
		marked = marked || err == nil
	}
	if !marked {
		return false
	}
	for name, initial := range initialNamespaces {
		if link, err := os.Readlink(e.path("proc/self/ns/" + name)); err != nil || link != fmt.Sprintf("%s:[%d]", name, initial) {
			return true
		}
	}
	return false
}
