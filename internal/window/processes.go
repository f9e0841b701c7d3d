// SPDX-License-Identifier: Apache-2.0

package window

import (
	"fmt"
	"io"
	"os"
	"strings"

	"xsched/internal/identity"
)

// maxEnviron bounds what is read of a process's environment.
const maxEnviron = 1 << 20

// Host answers from /proc. A process of another user has no environment there.
func Host() Processes { return Processes{Parent: identity.Parent, Getenv: environ} }

// environ returns a variable of the environment that a process was started with.
func environ(pid int, name string) string {
	file, err := os.Open(fmt.Sprintf("/proc/%d/environ", pid))
	if err != nil {
		return ""
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, maxEnviron))
	if err != nil {
		return ""
	}
	for pair := range strings.SplitSeq(string(text), "\x00") {
		if value, ok := strings.CutPrefix(pair, name+"="); ok {
			return value
		}
	}
	return ""
}
