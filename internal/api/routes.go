// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"net/http"
	"reflect"

	"xsched/internal/control"
)

// route is one typed call under Prefix; the table below makes both the mux and
// the OpenAPI document, so that they can't differ.
type route struct {
	method, path, summary string
	request, reply        reflect.Type // request nil: no body
	handle                func(*handler, control.Control) http.HandlerFunc
}

func routes() []route {
	return []route{
		reader("/version", "What is running", control.Control.Version),
		reader("/processes", "Every program the daemon knows, with its queues", control.Control.List),
		reader("/devices", "Every GPU seen so far", control.Control.Devices),
		reader("/stats", "The daemon's own figures; answers also while the engine is blocked", control.Control.Stats),

		reader("/policy", "The policy in force", reading(control.Control.Policy)),
		writer("PUT", "/policy", "Select a policy, or set its quantum", control.Control.Policy),
		reader("/mode", "The mode in force", reading(control.Control.Mode)),
		writer("PUT", "/mode", "Select a mode", control.Control.Mode),

		writer("POST", "/hint", "Change what is given, answer what is in force", control.Control.Hint),
		writer("POST", "/suspend", "Hold a program's GPU work until it is resumed", control.Control.Suspend),
		writer("POST", "/resume", "Let a held program go on", control.Control.Resume),
		writer("POST", "/attach", "Take a program under control that has no shim", control.Control.Attach),
		writer("POST", "/detach", "Give an attached program back", control.Control.Detach),
		writer("POST", "/queues", "The hardware queues of a program; for its user and root", control.Control.Queues),
		writer("POST", "/wedge", "Block the engine for a while; virtual GPUs only", control.Control.Wedge),
	}
}

// reading turns a call whose zero request only reads into a reader.
func reading[Request, Reply any](f func(control.Control, context.Context, control.Caller, Request) (Reply, error)) func(control.Control, context.Context, control.Caller) (Reply, error) {
	return func(c control.Control, ctx context.Context, caller control.Caller) (Reply, error) {
		var none Request
		return f(c, ctx, caller, none)
	}
}

func reader[Reply any](path, summary string, f func(control.Control, context.Context, control.Caller) (Reply, error)) route {
	return route{
		method: http.MethodGet, path: path, summary: summary, reply: reflect.TypeFor[Reply](),
		handle: func(h *handler, c control.Control) http.HandlerFunc {
			return read(h, func(ctx context.Context, caller control.Caller) (Reply, error) { return f(c, ctx, caller) })
		},
	}
}

func writer[Request, Reply any](method, path, summary string, f func(control.Control, context.Context, control.Caller, Request) (Reply, error)) route {
	return route{
		method: method, path: path, summary: summary,
		request: reflect.TypeFor[Request](), reply: reflect.TypeFor[Reply](),
		handle: func(h *handler, c control.Control) http.HandlerFunc {
			return call(h, func(ctx context.Context, caller control.Caller, r Request) (Reply, error) {
				return f(c, ctx, caller, r)
			})
		},
	}
}
