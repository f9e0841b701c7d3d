// SPDX-License-Identifier: Apache-2.0

// Package guardian is a small process that guards processes without the shim. Nothing inside them
// could resume them if the daemon dies or stalls. The guardian holds duplicates of their files and
// restores them through their driver. A driver that depends on a debugger gets one guardian process
// per attached process.
package guardian

import (
	"encoding/json"

	"xsched/internal/driver"
	"xsched/internal/health"
)

// message is one JSON packet from the daemon.
type message struct {
	Op  string `json:"op"`  // start, attach, detach, supervise, health
	Seq uint64 `json:"seq"` // echoed in the reply

	// start: location of the drivers, and the daemon's release
	Place   driver.Place `json:"place"`
	Version string       `json:"version,omitempty"`

	// attach: with descriptors [page, pidfd, the driver's...]
	Session uint64          `json:"session,omitempty"`
	Driver  string          `json:"driver,omitempty"` // supervise, too
	PID     int             `json:"pid,omitempty"`
	State   json.RawMessage `json:"state,omitempty"`
	Record  string          `json:"record,omitempty"` // in the journal; to be removed once restored

	// detach: true if the daemon has restored the process; otherwise the guardian restores it.
	Restored bool `json:"restored,omitempty"`

	// supervise: the driver's first request
	First json.RawMessage `json:"first,omitempty"`
}

// reply answers a message; Seq identifies it. For the detach of a restored process it waits until the
// guardian's own attempt has ended.
type reply struct {
	Seq   uint64 `json:"seq"`
	Error string `json:"error,omitempty"`
	// Late are the parts of the guardian that hang; health only.
	Late []health.State `json:"late,omitempty"`
}

const opHealth = "health"
