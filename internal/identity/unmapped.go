// SPDX-License-Identifier: Apache-2.0

package identity

import (
	"os"
	"strconv"
	"strings"
	"sync"
)

// Unmapped reports whether a uid stands for users that this process's user namespace does not map,
// such as the host's root for a process in a container. On the host it is an ordinary user.
func Unmapped(uid int) bool {
	overflow, inside := unmapped()
	return inside && uid == overflow
}

var unmapped = sync.OnceValues(func() (overflow int, inside bool) {
	overflow = 65534
	if text, err := os.ReadFile("/proc/sys/kernel/overflowuid"); err == nil {
		if n, err := strconv.Atoi(strings.TrimSpace(string(text))); err == nil {
			overflow = n
		}
	}
	text, err := os.ReadFile("/proc/self/uid_map")
	f := strings.Fields(string(text))
	whole := len(f) == 3 && f[0] == "0" && f[1] == "0" && f[2] == "4294967295"
	return overflow, err == nil && !whole
})
