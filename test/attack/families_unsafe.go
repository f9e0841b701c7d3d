// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strconv"
	"unsafe"

	"golang.org/x/sys/unix"
)

// restrictFamilies lets socket() fail for other address families, as systemd's
// RestrictAddressFamilies does.
func restrictFamilies(families []string) error {
	const (
		load  = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS
		equal = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K
		ret   = unix.BPF_RET | unix.BPF_K
		nr    = 0  // offset of seccomp_data.nr
		first = 16 // of seccomp_data.args[0]
	)
	program := []unix.SockFilter{
		{Code: load, K: nr},
		{Code: equal, K: unix.SYS_SOCKET, Jf: uint8(len(families) + 2)},
		{Code: load, K: first},
	}
	for i, text := range families {
		family, err := strconv.Atoi(text)
		if err != nil {
			return err
		}
		program = append(program, unix.SockFilter{Code: equal, K: uint32(family), Jt: uint8(len(families) - i)})
	}
	program = append(program,
		unix.SockFilter{Code: ret, K: unix.SECCOMP_RET_ERRNO | uint32(unix.EAFNOSUPPORT)},
		unix.SockFilter{Code: ret, K: unix.SECCOMP_RET_ALLOW})
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	filter := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	if _, _, errno := unix.RawSyscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, uintptr(unsafe.Pointer(&filter))); errno != 0 {
		return errno
	}
	return nil
}
