// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"os"
	"path/filepath"
	"sync"
	"time"

	"xsched/internal/model"
	"xsched/internal/wire"
)

// Claim says what it takes to believe a process that it uses a GPU. The process itself names the
// GPU, so without a check it could invent any number of them.
type Claim uint8

// The claims, by what is known about the GPU.
const (
	ClaimUnlisted Claim = iota // no driver lists the GPU, so nothing confirms or refutes its use
	ClaimTrusted               // a driver lists the GPU, but does not know who uses it
	ClaimVerified              // Resolve reports the GPU exactly while the process has a working descriptor of it
	ClaimAbsent                // a PCI address that this host does not have
)

// Claimer is a Session that judges claims. Claim must not block.
type Claimer interface {
	Claim(gpu model.DeviceID) Claim
}

// Verifier is a driver's session that verifies which GPUs of the driver its process uses.
type Verifier interface {
	// Verifies reports whether Resolve omits a GPU exactly while the process has no working
	// descriptor of it. Must not block.
	Verifies(gpu model.DeviceID) bool
}

// noPCI reports a device without a PCI address, such as an OpenCL CPU device.
func noPCI(gpu model.DeviceID) bool { return uint64(gpu)>>16 == wire.NoPCIDomain }

// listing is what a host shows about its GPUs. It does not change once it is published.
type listing struct {
	drivers []map[model.DeviceID]bool // by driver, in the order of the set
	bus     map[model.DeviceID]bool   // PCI addresses of the host; nil: unknown
}

// claim judges a GPU. verifies reports whether the session of the nth driver verifies it.
func (l *listing) claim(gpu model.DeviceID, verifies func(n int) bool) Claim {
	out := ClaimUnlisted
	for n, listed := range l.drivers {
		switch {
		case !listed[gpu]:
		case verifies(n):
			return ClaimVerified
		default:
			out = ClaimTrusted
		}
	}
	if out == ClaimUnlisted && l.bus != nil && !l.bus[gpu] && !noPCI(gpu) {
		return ClaimAbsent
	}
	return out
}

// listAge is the lifetime of a listing. Clients trigger the reading of the host's files; a module
// or a virtual GPU that appears is known to the next probe.
const listAge = 100 * time.Millisecond

// lister caches the listing of a set of drivers.
type lister struct {
	mu   sync.Mutex
	read time.Time
	last *listing
}

// list returns a listing that is at most listAge old; it reads files.
func (l *lister) list(drivers []opened, o *Options) *listing {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.last != nil && len(l.last.drivers) == len(drivers) && time.Since(l.read) < listAge {
		return l.last
	}
	out := &listing{}
	for _, d := range drivers {
		listed := map[model.DeviceID]bool{}
		for _, gpu := range d.instance.Devices() {
			listed[gpu] = true
		}
		out.drivers = append(out.drivers, listed)
	}
	switch {
	case o.Virtual:
		out.bus = map[model.DeviceID]bool{} // the listed GPUs are all there are
	case len(drivers) > 0:
		out.bus = readBus(o.Root)
	}
	l.last, l.read = out, time.Now()
	return out
}

// readBus returns the PCI addresses of a host; nil: unknown.
func readBus(root string) map[model.DeviceID]bool {
	entries, err := os.ReadDir(filepath.Join("/", root, "sys/bus/pci/devices"))
	if err != nil || len(entries) == 0 {
		return nil
	}
	out := make(map[model.DeviceID]bool, len(entries))
	for _, e := range entries {
		if id, err := model.ParseDeviceID(e.Name()); err == nil {
			out[id] = true
		}
	}
	return out
}
