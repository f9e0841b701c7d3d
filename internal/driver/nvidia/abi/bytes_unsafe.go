// SPDX-License-Identifier: Apache-2.0

package abi

import "unsafe"

// Struct is one of the structs above.
type Struct interface {
	NVOS00 | NVOS21 | NVOS64 | NVOS54 | DisableChannels | Timeslice | GroupInfo | WorkSubmitToken | GPUID | ComputeModeRules | FBInfo | GetFBInfo
}

// Size returns the size of a struct in bytes.
func Size[T Struct]() int { return int(unsafe.Sizeof(*new(T))) }

// Bytes returns p's memory without copying.
func Bytes[T Struct](p *T) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(p)), unsafe.Sizeof(*p))
}

// Decode copies a struct out of b; false: b has the wrong size.
func Decode[T Struct](b []byte) (v T, ok bool) {
	return v, copy(Bytes(&v), b) == len(b) && len(b) == Size[T]()
}
