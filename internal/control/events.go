// SPDX-License-Identifier: Apache-2.0

package control

// EventsRequest is the query of the event stream.
type EventsRequest struct {
	// EveryMS is the period of the state, 250 to 10000; 0: 1000.
	EveryMS int `json:"every_ms,omitempty"`
	// With lists the events, separated by commas: Parts; empty: PartSnapshot.
	With string `json:"with,omitempty"`
	// Since is as in JournalRequest, for PartJournal.
	Since uint64 `json:"since,omitempty"`
}

// The events of a stream.
const (
	PartSnapshot = "snapshot" // List
	PartDevices  = "devices"  // Devices
	PartJournal  = "journal"  // Journal: entries since the last event
	PartHistory  = "history"  // History: spans since the last event, and the last few points
)

// Parts returns the values of EventsRequest.With.
func Parts() []string { return []string{PartSnapshot, PartDevices, PartJournal, PartHistory} }
