// SPDX-License-Identifier: Apache-2.0

package amd

import (
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// The driver accepts suspend and resume only from a process's debugger, in the thread that traces
// it. Each attached process therefore gets a supervisor: a guardian process that becomes its
// debugger and can resume it while the daemon is stalled. The supervisor holds the session's page
// and suspends only under a lease.
//
// Requests: trace (pid), page (with its descriptor), ping, queues, suspend and resume (of a GPU).
// Closing the socket ends the session.

// message is a request of the daemon.
type message struct {
	Op  string `json:"op"`
	Seq uint64 `json:"seq"` // echoed in the reply

	// trace
	PID    int    `json:"pid,omitempty"`
	Socket string `json:"socket,omitempty"` // of the virtual device; empty: the real one

	order
}

// reply answers a request; Seq identifies late replies.
type reply struct {
	Seq   uint64 `json:"seq"`
	Error string `json:"error,omitempty"`
	traced
}

// order holds the arguments of suspend and resume.
type order struct {
	GPU   uint32 `json:"gpu,omitempty"`
	Kinds Kinds  `json:"kinds,omitempty"`
	Grace uint32 `json:"grace,omitempty"`
}

// traced extends a supervisor's reply. Lists are packed, because a process may have a thousand
// queues.
type traced struct {
	Kind    string `json:"kind,omitempty"` // class of the error
	Queues  []byte `json:"queues,omitempty"`
	Results []byte `json:"results,omitempty"`
	Caught  uint64 `json:"caught,omitempty"`
	Ended   bool   `json:"ended,omitempty"` // the process has ended; unsolicited
}

// errorKinds lists the errors that keep their class across the socket; the first match wins.
func errorKinds() []error {
	return []error{
		ErrNoRights, ErrTraced, ErrNoKFD, ErrNoRuntime, ErrOldDriver, ErrGone,
		ErrIncomplete, ErrStale, ErrFormat, unix.EACCES,
	}
}

func kindOf(err error) string {
	for _, kind := range errorKinds() {
		if errors.Is(err, kind) {
			return kind.Error()
		}
	}
	return ""
}

// tracerError is an error from the other side.
type tracerError struct {
	text string
	kind error
}

func (e *tracerError) Error() string { return e.text }

// Unwrap returns the error's class.
func (e *tracerError) Unwrap() error { return e.kind }

// failure returns the error in a reply.
func (r reply) failure() error {
	if r.Error == "" {
		return nil
	}
	for _, kind := range errorKinds() {
		if kind.Error() == r.Kind {
			return &tracerError{r.Error, kind}
		}
	}
	return errors.New(r.Error)
}

func packList[T any](list []T) ([]byte, error) {
	b, err := binary.Append(nil, binary.LittleEndian, list)
	if err != nil {
		return nil, fmt.Errorf("encode list: %w", err)
	}
	return b, nil
}

func unpackList[T any](b []byte) ([]T, error) {
	var one T
	size := binary.Size(one)
	if len(b)%size != 0 {
		return nil, fmt.Errorf("decode list: %d bytes in entries of %d", len(b), size)
	}
	list := make([]T, len(b)/size)
	if _, err := binary.Decode(b, binary.LittleEndian, list); err != nil {
		return nil, fmt.Errorf("decode list: %w", err)
	}
	return list, nil
}
