// SPDX-License-Identifier: Apache-2.0

package guardian

import "golang.org/x/sys/unix"

// spareFiles is enough to start a guardian and to hand over a process, in addition to some connections that
// the daemon accepts in the meantime.
const spareFiles = 16

// spare holds descriptors for the start of a guardian. A daemon that has reached its limit of open
// files could not replace a dead one, and nobody would resume attached processes after the daemon.
type spare []int

// fill reserves as many as the limit permits.
func (s *spare) fill() {
	if len(*s) >= spareFiles {
		return
	}
	fd, err := unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	for err == nil {
		if *s = append(*s, fd); len(*s) == spareFiles {
			return
		}
		fd, err = unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 3)
	}
}

// release frees them.
func (s *spare) release() {
	for _, fd := range *s {
		_ = unix.Close(fd)
	}
	*s = (*s)[:0]
}
