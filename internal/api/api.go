// SPDX-License-Identifier: Apache-2.0

// Package api is the daemon's control interface as JSON over HTTP: a handler
// that offers a daemon.Control under /api/v1, a server for the control socket,
// and a typed client. The same errors come out of the client as went into the
// server, so that errors.Is works on both sides.
package api

import (
	"errors"
	"net/http"

	"xsched/internal/daemon"
)

// Prefix starts every route of this version.
const Prefix = "/api/v1"

// maxBodyBytes bounds a request; the largest real one is a few hundred bytes.
const maxBodyBytes = 64 << 10

// maxReplyBytes bounds what a client reads; a list of 4096 processes fits.
const maxReplyBytes = 64 << 20

// errorReply is the body of every reply that is not a success.
type errorReply struct {
	Error errorBody `json:"error"`
}

type errorBody struct {
	Code   string `json:"code"`
	Cause  string `json:"message"`
	Remedy string `json:"remedy,omitempty"`
}

// codes maps the classes of daemon errors to what goes over the wire.
var codes = []struct {
	kind   error
	code   string
	status int
}{
	{daemon.ErrNotFound, "not_found", http.StatusNotFound},
	{daemon.ErrNotAllowed, "not_allowed", http.StatusForbidden},
	{daemon.ErrNotSupported, "not_supported", http.StatusUnprocessableEntity},
	{daemon.ErrInvalid, "invalid", http.StatusBadRequest},
	{daemon.ErrUnavailable, "unavailable", http.StatusServiceUnavailable},
}

const codeInternal = "internal"

// encodeError says how an error goes over the wire.
func encodeError(err error) (int, errorReply) {
	status, body := http.StatusInternalServerError, errorBody{Code: codeInternal, Cause: err.Error()}
	for _, c := range codes {
		if errors.Is(err, c.kind) {
			status, body.Code = c.status, c.code
			break
		}
	}
	if e, ok := errors.AsType[*daemon.Error](err); ok {
		body.Cause, body.Remedy = e.Cause, e.Remedy
	}
	return status, errorReply{body}
}

// decodeError is the way back.
func decodeError(body errorBody) error {
	e := &daemon.Error{Kind: daemon.ErrUnavailable, Cause: body.Cause, Remedy: body.Remedy}
	for _, c := range codes {
		if body.Code == c.code {
			e.Kind = c.kind
		}
	}
	return e
}
