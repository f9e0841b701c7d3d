// SPDX-License-Identifier: Apache-2.0

package amd

import (
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// The driver accepts suspend and resume only from a process's debugger, and
// only from the thread that traces it. So each attached process gets a
// supervisor: a guardian process that becomes its debugger and can resume it
// while the daemon is stopped. The supervisor gets the session's page and
// suspends only under a lease.
//
// Requests: trace (pid), page (with the page's file), ping, queues, suspend and
// resume (of a GPU). The end of the socket is the end of the session.

// message is a request of the daemon.
type message struct {
	Op  string `json:"op"`
	Seq uint64 `json:"seq"` // comes back in the reply

	// trace
	PID    int    `json:"pid,omitempty"`
	Socket string `json:"socket,omitempty"` // of the virtual device; empty: the real one

	order
}

// reply answers a request; one that came too late is recognised by its number.
type reply struct {
	Seq   uint64 `json:"seq"`
	Error string `json:"error,omitempty"`
	traced
}

// order is what suspend and resume need.
type order struct {
	GPU   uint32 `json:"gpu,omitempty"`
	Kinds Kinds  `json:"kinds,omitempty"`
	Grace uint32 `json:"grace,omitempty"`
}

// traced is what a tracer's answer has besides. Lists are packed: a process may have a thousand queues.
type traced struct {
	Kind    string `json:"kind,omitempty"` // of the error
	Queues  []byte `json:"queues,omitempty"`
	Results []byte `json:"results,omitempty"`
	Caught  uint64 `json:"caught,omitempty"`
	Ended   bool   `json:"ended,omitempty"` // the process has; this answers nothing
}

// errorKinds are the errors that keep their meaning on the way, the first that fits.
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

// tracerError is an error as the other side had it.
type tracerError struct {
	text string
	kind error
}

// Error is the text of the other side.
func (e *tracerError) Error() string { return e.text }

// Unwrap gives what kind of error it was there.
func (e *tracerError) Unwrap() error { return e.kind }

// failure is what an answer says went wrong.
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
