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

	"xsched/internal/budget"
	"xsched/internal/control"
)

// Identify returns the sender of a request; each listener has its own method.
type Identify func(*http.Request) (control.Caller, error)

// newMux routes requests to c: the typed routes under control.Prefix with their OpenAPI document and
// the event stream, upstream XSched's routes, /metrics and /healthz.
func newMux(c control.Control, identify Identify, events *feed, b *budget.Budget) http.Handler {
	mux := http.NewServeMux()
	h := &handler{identify: identify}
	for _, r := range routes() {
		mux.HandleFunc(r.method+" "+control.Prefix+r.path, r.handle(h, c))
	}
	mux.HandleFunc("GET "+control.Prefix+openAPIPath, h.known(serveOpenAPI))
	mux.HandleFunc("GET "+control.Prefix+eventsPath, h.onHost(events.serve))
	mux.HandleFunc("GET /healthz", healthz(c.Parts))
	mux.HandleFunc("GET /metrics", h.onHost(metricsHandler(c)))
	(&xsched{handler: h, control: c}).register(mux)

	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		writeError(w, &control.Error{
			Kind: control.ErrNotFound, Cause: fmt.Sprintf("no route %s %s", r.Method, r.URL.Path),
			Remedy: "see " + control.Prefix + openAPIPath + " for the routes of this version",
		})
	})
	return charged(b, identify, mux)
}

type handler struct{ identify Identify }

// known rejects callers that identify does not know. All others may read.
func (h *handler) known(next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if _, err := h.identify(r); err != nil {
			writeError(w, err)
			return
		}
		next(w, r)
	}
}

// onHost rejects callers in a container, which may see only what is theirs.
func (h *handler) onHost(next func(http.ResponseWriter, *http.Request, control.Caller)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		caller, err := h.identify(r)
		if err == nil && !caller.User.Host() {
			err = &control.Error{Kind: control.ErrNotAllowed, Cause: r.URL.Path + " is not available in a container", Remedy: "use the control socket of the host"}
		}
		if err != nil {
			writeError(w, err)
			return
		}
		next(w, r, caller)
	}
}

func read[Reply any](h *handler, f func(context.Context, control.Caller) (Reply, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		caller, err := h.identify(r)
		if err != nil {
			writeError(w, err)
			return
		}
		ctx, cancel := context.WithTimeout(r.Context(), control.CallTimeout)
		defer cancel()
		reply, err := f(ctx, caller)
		if err != nil {
			writeError(w, err)
			return
		}
		writeJSON(w, http.StatusOK, reply)
	}
}

func call[Request, Reply any](h *handler, f func(context.Context, control.Caller, Request) (Reply, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var request Request
		if err := readJSON(w, r, maxBodyBytes, &request); err != nil {
			writeError(w, err)
			return
		}
		read(h, func(ctx context.Context, caller control.Caller) (Reply, error) {
			return f(ctx, caller, request)
		})(w, r)
	}
}

// readJSON reads exactly one JSON value with known fields. It requires the JSON content type,
// which a web page can't send to another origin without a preflight request.
func readJSON(w http.ResponseWriter, r *http.Request, most int64, into any) error {
	invalid := func(format string, args ...any) error {
		return &control.Error{Kind: control.ErrInvalid, Cause: fmt.Sprintf(format, args...)}
	}
	if kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || kind != "application/json" {
		return invalid("content type %q is not application/json", r.Header.Get("Content-Type"))
	}
	decoder := json.NewDecoder(http.MaxBytesReader(w, r.Body, most))
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
	status, body := control.EncodeError(err)
	writeJSON(w, status, body)
}

func writeJSON(w http.ResponseWriter, status int, value any) {
	body, err := json.Marshal(value)
	if err != nil { // at worst a NaN in a histogram
		status, body = http.StatusInternalServerError, []byte(`{"error":{"code":"internal","message":"encode reply"}}`)
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_, _ = w.Write(append(body, '\n')) // the peer may have closed the connection
}
