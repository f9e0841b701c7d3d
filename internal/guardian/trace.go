// SPDX-License-Identifier: Apache-2.0

package guardian

import (
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"xsched/internal/driver/amd"
)

// A guardian that is told to trace becomes the debugger of one process on AMD's driver, for good:
// only that may stop and resume the queues, and only the thread that traces. So that it can do so
// while the daemon is stopped it is a process of its own, one for each target. It gets the page
// of the session and suspends under a lease alone.
//
// Requests: trace (pid), page (with the page's file), ping, queues, suspend and resume (of a GPU).
// The end of the socket is the end of the session.

// order is what suspend and resume need.
type order struct {
	GPU   uint32    `json:"gpu,omitempty"`
	Kinds amd.Kinds `json:"kinds,omitempty"`
	Grace uint32    `json:"grace,omitempty"`
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
		amd.ErrNoRights, amd.ErrTraced, amd.ErrNoKFD, amd.ErrNoRuntime, amd.ErrOldDriver, amd.ErrGone,
		amd.ErrIncomplete, amd.ErrStale, amd.ErrFormat, unix.EACCES,
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

func pack[T any](list []T) ([]byte, error) {
	b, err := binary.Append(nil, binary.LittleEndian, list)
	if err != nil {
		return nil, fmt.Errorf("encode list: %w", err)
	}
	return b, nil
}

func unpack[T any](b []byte) ([]T, error) {
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
