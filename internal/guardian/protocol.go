// SPDX-License-Identifier: Apache-2.0

// Package guardian is the small process that answers for processes without the
// shim. The daemon controls those through duplicates of their files; if it dies
// or falls silent, nothing inside them would resume them. The guardian holds
// duplicates too, and restores them through their driver. A driver whose
// processes only a debugger can resume has a guardian process for each.
package guardian

import (
	"encoding/json"

	"xsched/internal/driver"
)

// message is one packet from the daemon, as JSON.
type message struct {
	Op  string `json:"op"`  // start, attach, detach, supervise
	Seq uint64 `json:"seq"` // comes back in the reply

	// start: where the drivers are
	Place driver.Place `json:"place"`

	// attach: with descriptors [page, pidfd, the driver's...]
	Session uint64          `json:"session,omitempty"`
	Driver  string          `json:"driver,omitempty"` // supervise, too
	PID     int             `json:"pid,omitempty"`
	State   json.RawMessage `json:"state,omitempty"`

	// detach: the daemon has restored the process. Otherwise the guardian does.
	Restored bool `json:"restored,omitempty"`

	// supervise: the driver's first request
	First json.RawMessage `json:"first,omitempty"`
}

// reply answers every message, in order; one that came too late is recognised by its number.
type reply struct {
	Seq   uint64 `json:"seq"`
	Error string `json:"error,omitempty"`
}
