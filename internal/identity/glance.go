// SPDX-License-Identifier: Apache-2.0

package identity

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// Glance returns whom to charge for a new connection before its process is identified: a hundredth of the
// cost. It grants no rights. Root of a container with a PID namespace of its own is not taken for root.
func Glance(uid, pid int) User {
	if uid != 0 || pid <= 0 {
		return OnHost(uid)
	}
	o := own()
	var st unix.Stat_t
	if unix.Stat(fmt.Sprintf("%s/%d/ns/pid", o.proc, pid), &st) == nil && st.Ino != o.pid {
		return User{Container: fmt.Sprintf("pid:[%d]", st.Ino)}
	}
	return OnHost(uid)
}
