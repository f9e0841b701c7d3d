// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"time"

	"xsched/internal/daemon"
)

// callTimeout bounds one request in the daemon; attaching to a process that
// holds thousands of handles is the slowest.
const callTimeout = 15 * time.Second

// Identify says who sent a request; each listener has its own way to know.
type Identify func(*http.Request) (daemon.Caller, error)

// Handler offers c under Prefix. It knows nothing of the connection, so that
// any listener can use it, alone or inside another mux.
func Handler(c daemon.Control, identify Identify) http.Handler {
	mux := http.NewServeMux()
	h := &handler{identify: identify}

	mux.HandleFunc("GET "+Prefix+"/version", read(h, c.Version))
	mux.HandleFunc("GET "+Prefix+"/processes", read(h, c.List))
	mux.HandleFunc("GET "+Prefix+"/devices", read(h, c.Devices))
	mux.HandleFunc("GET "+Prefix+"/stats", read(h, c.Stats))

	mux.HandleFunc("GET "+Prefix+"/policy", read(h, fixed(c.Policy)))
	mux.HandleFunc("PUT "+Prefix+"/policy", call(h, c.Policy))
	mux.HandleFunc("GET "+Prefix+"/mode", read(h, fixed(c.Mode)))
	mux.HandleFunc("PUT "+Prefix+"/mode", call(h, c.Mode))

	mux.HandleFunc("POST "+Prefix+"/hint", call(h, c.Hint))
	mux.HandleFunc("POST "+Prefix+"/suspend", call(h, c.Suspend))
	mux.HandleFunc("POST "+Prefix+"/resume", call(h, c.Resume))
	mux.HandleFunc("POST "+Prefix+"/attach", call(h, c.Attach))
	mux.HandleFunc("POST "+Prefix+"/detach", call(h, c.Detach))
	mux.HandleFunc("POST "+Prefix+"/wedge", call(h, c.Wedge))

	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		writeError(w, &daemon.Error{
			Kind: daemon.ErrNotFound, Cause: fmt.Sprintf("no route %s %s", r.Method, r.URL.Path),
			Remedy: "use the same version of xsched on both sides",
		})
	})
	return mux
}

type handler struct{ identify Identify }

// fixed turns a call whose zero request only reads into a reader.
func fixed[Request, Reply any](f func(context.Context, daemon.Caller, Request) (Reply, error)) func(context.Context, daemon.Caller) (Reply, error) {
	return func(ctx context.Context, caller daemon.Caller) (Reply, error) {
		var none Request
		return f(ctx, caller, none)
	}
}

func read[Reply any](h *handler, f func(context.Context, daemon.Caller) (Reply, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		caller, err := h.identify(r)
		if err != nil {
			writeError(w, err)
			return
		}
		ctx, cancel := context.WithTimeout(r.Context(), callTimeout)
		defer cancel()
		reply, err := f(ctx, caller)
		if err != nil {
			writeError(w, err)
			return
		}
		writeJSON(w, http.StatusOK, reply)
	}
}

func call[Request, Reply any](h *handler, f func(context.Context, daemon.Caller, Request) (Reply, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var request Request
		if err := readJSON(w, r, &request); err != nil {
			writeError(w, err)
			return
		}
		read(h, func(ctx context.Context, caller daemon.Caller) (Reply, error) {
			return f(ctx, caller, request)
		})(w, r)
	}
}

// readJSON reads exactly one JSON value with known fields. The content type is
// asked for because a web page can't send it to another origin unasked.
func readJSON(w http.ResponseWriter, r *http.Request, into any) error {
	invalid := func(format string, args ...any) error {
		return &daemon.Error{Kind: daemon.ErrInvalid, Cause: fmt.Sprintf(format, args...)}
	}
	if kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || kind != "application/json" {
		return invalid("content type %q is not application/json", r.Header.Get("Content-Type"))
	}
	decoder := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBodyBytes))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(into); err != nil {
		return invalid("read request: %v", err)
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return invalid("read request: more than one JSON value")
	}
	return nil
}

func writeError(w http.ResponseWriter, err error) {
	status, body := encodeError(err)
	writeJSON(w, status, body)
}

func writeJSON(w http.ResponseWriter, status int, value any) {
	body, err := json.Marshal(value)
	if err != nil { // our own types: a NaN in a histogram, at worst
		status, body = http.StatusInternalServerError, []byte(`{"error":{"code":"internal","message":"encode reply"}}`)
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_, _ = w.Write(append(body, '\n')) // the peer may be gone; nobody is left to tell
}
