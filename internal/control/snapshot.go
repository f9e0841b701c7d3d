// SPDX-License-Identifier: Apache-2.0

package control

import "time"

// Snapshot is the state of a daemon at one moment.
type Snapshot struct {
	TimeNS  int64    `json:"time_unix_ns"`
	Daemon  Version  `json:"daemon"`
	List    List     `json:"list"`
	Devices []Device `json:"devices"`
	// Problems keep every program of the host from being scheduled.
	Problems []Problem `json:"problems,omitempty"`

	// Fleet is set if the snapshot is of several nodes.
	Fleet *Fleet `json:"-"`
}

// Time returns the time of the snapshot.
func (s *Snapshot) Time() time.Time { return time.Unix(0, s.TimeNS) }

// Fleet makes a snapshot one of several nodes.
type Fleet struct {
	Nodes int // that answer
	// Node finds the node of a tenant by its session, which is unique in the snapshot.
	Node map[uint64]string
	// Lost has the nodes that do not answer, those with the same reason in one line.
	Lost []string
}
