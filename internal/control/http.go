// SPDX-License-Identifier: Apache-2.0

package control

import (
	"errors"
	"net/http"
	"time"
)

// Prefix starts every HTTP route of this version.
const Prefix = "/api/v1"

// CallTimeout bounds one request in the daemon; attaching to a process that
// holds thousands of handles is the slowest.
const CallTimeout = 15 * time.Second

// MaxReplyBytes bounds what a client reads; a list of 4096 processes fits.
const MaxReplyBytes = 64 << 20

// ErrorReply is the body of every reply that is not a success.
type ErrorReply struct {
	Error ErrorBody `json:"error"`
}

// ErrorBody is an Error in JSON.
type ErrorBody struct {
	Code   string `json:"code"`
	Cause  string `json:"message"`
	Remedy string `json:"remedy,omitempty"`
}

// codes maps error classes to their wire representation.
var codes = []struct {
	kind   error
	code   string
	status int
}{
	{ErrNotFound, "not_found", http.StatusNotFound},
	{ErrNotAllowed, "not_allowed", http.StatusForbidden},
	{ErrNotSupported, "not_supported", http.StatusUnprocessableEntity},
	{ErrInvalid, "invalid", http.StatusBadRequest},
	{ErrUnavailable, "unavailable", http.StatusServiceUnavailable},
}

// CodeInternal is the code of an error without a class.
const CodeInternal = "internal"

// EncodeError returns the status and the body for an error.
func EncodeError(err error) (int, ErrorReply) {
	status, body := http.StatusInternalServerError, ErrorBody{Code: CodeInternal, Cause: err.Error()}
	for _, c := range codes {
		if errors.Is(err, c.kind) {
			status, body.Code = c.status, c.code
			break
		}
	}
	if e, ok := errors.AsType[*Error](err); ok {
		body.Cause, body.Remedy = e.Cause, e.Remedy
	}
	return status, ErrorReply{body}
}

// DecodeError is the inverse of EncodeError.
func DecodeError(body ErrorBody) error {
	e := &Error{Kind: ErrUnavailable, Cause: body.Cause, Remedy: body.Remedy}
	for _, c := range codes {
		if body.Code == c.code {
			e.Kind = c.kind
		}
	}
	return e
}

// Innermost unwraps an error to its first cause.
func Innermost(err error) error {
	for {
		next := errors.Unwrap(err)
		if next == nil {
			return err
		}
		err = next
	}
}
