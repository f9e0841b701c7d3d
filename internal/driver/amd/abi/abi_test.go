// SPDX-License-Identifier: Apache-2.0

package abi

import (
	"encoding/binary"
	"testing"
)

// The structs have the sizes that drivers expect.
func TestSizes(t *testing.T) {
	for v, want := range map[any]int{RuntimeInfo{}: RuntimeInfoBytes, QueueSnapshotEntry{}: QueueSnapshotBytes} {
		if got := binary.Size(v); got != want {
			t.Errorf("%T has %d bytes, want %d", v, got, want)
		}
	}
	if Number(AMDKFD_IOC_DBG_TRAP) != 0x26 || Size(AMDKFD_IOC_DBG_TRAP) != 32 {
		t.Errorf("DBG_TRAP is number %#x with %d bytes", Number(AMDKFD_IOC_DBG_TRAP), Size(AMDKFD_IOC_DBG_TRAP))
	}
}
