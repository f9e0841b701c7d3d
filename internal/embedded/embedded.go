// SPDX-License-Identifier: Apache-2.0

// Package embedded contains the C artefacts of XSched and unpacks them into a cache folder for the
// dynamic loader.
//
// `make build` copies the artefacts into files/<architecture>/ before it builds the binary.
// Without them the package still compiles, and Unpack returns ErrMissing.
package embedded

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
)

// The artefacts, by the name they are unpacked under.
const (
	Shim        = "libxsched.so" // preloaded into every application
	VirtualRM   = "libvgpu.so"   // the virtual GPU's /dev/nvidiactl
	VirtualCUDA = "libcuda.so.1" // the virtual GPU's driver library
	VirtualKFD  = "libvkfd.so"   // the virtual AMD GPU's /dev/kfd
	VirtualHIP  = "libamdhip64.so.6"
	Tenant      = "tenant"   // the load generator of bench and demo
	SelfTest    = "selftest" // the program of `xsched doctor --self-test`
	Sensors     = "sensors"  // reads temperature, power and so on of the GPUs
)

// artefact describes a file to unpack.
type artefact struct {
	name string
	mode fs.FileMode
}

// registry lists every artefact.
var registry = []artefact{
	{Shim, 0o444},
	{VirtualRM, 0o444},
	{VirtualCUDA, 0o444},
	{VirtualKFD, 0o444},
	{VirtualHIP, 0o444},
	{Tenant, 0o555},
	{SelfTest, 0o555},
	{Sensors, 0o555},
}

// ErrMissing reports a binary built without the artefacts.
var ErrMissing = errors.New("built without the C artefacts; run `make build`")

func lookup(name string) (artefact, []byte, error) {
	for _, a := range registry {
		if a.name != name {
			continue
		}
		content, err := files.ReadFile(folder + name)
		if errors.Is(err, fs.ErrNotExist) {
			return artefact{}, nil, fmt.Errorf("unpack %s: %w", name, ErrMissing)
		}
		if err != nil {
			return artefact{}, nil, fmt.Errorf("unpack %s: %w", name, err)
		}
		return a, content, nil
	}
	return artefact{}, nil, fmt.Errorf("unpack %s: no such artefact", name)
}

// Digest identifies the content of an artefact; empty if the binary has none.
func Digest(name string) string {
	_, content, err := lookup(name)
	if err != nil {
		return ""
	}
	return digest(content)
}

func digest(content []byte) string {
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:])[:16]
}
