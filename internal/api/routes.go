// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"net/http"
	"reflect"

	"xsched/internal/daemon"
)

// route is one typed call under Prefix; the table below makes both the mux and
// the OpenAPI document, so that they can't differ.
type route struct {
	method, path, summary string
	request, reply        reflect.Type // request nil: no body
	handle                func(*handler, daemon.Control) http.HandlerFunc
}

func routes() []route {
	return []route{
		reader("/version", "What is running", daemon.Control.Version),
		reader("/processes", "Every program the daemon knows, with its queues", daemon.Control.List),
		reader("/devices", "Every GPU seen so far", daemon.Control.Devices),
		reader("/stats", "The daemon's own figures; answers also while the engine is blocked", daemon.Control.Stats),

		reader("/policy", "The policy in force", reading(daemon.Control.Policy)),
		writer("PUT", "/policy", "Select a policy, or set its quantum", daemon.Control.Policy),
		reader("/mode", "The mode in force", reading(daemon.Control.Mode)),
		writer("PUT", "/mode", "Select a mode", daemon.Control.Mode),

		writer("POST", "/hint", "Change what is given, answer what is in force", daemon.Control.Hint),
		writer("POST", "/suspend", "Hold a program's GPU work until it is resumed", daemon.Control.Suspend),
		writer("POST", "/resume", "Let a held program go on", daemon.Control.Resume),
		writer("POST", "/attach", "Take a program under control that has no shim", daemon.Control.Attach),
		writer("POST", "/detach", "Give an attached program back", daemon.Control.Detach),
		writer("POST", "/queues", "The hardware queues of a program; for its user and root", daemon.Control.Queues),
		writer("POST", "/wedge", "Block the engine for a while; virtual GPUs only", daemon.Control.Wedge),
	}
}

// reading turns a call whose zero request only reads into a reader.
func reading[Request, Reply any](f func(daemon.Control, context.Context, daemon.Caller, Request) (Reply, error)) func(daemon.Control, context.Context, daemon.Caller) (Reply, error) {
	return func(c daemon.Control, ctx context.Context, caller daemon.Caller) (Reply, error) {
		var none Request
		return f(c, ctx, caller, none)
	}
}

func reader[Reply any](path, summary string, f func(daemon.Control, context.Context, daemon.Caller) (Reply, error)) route {
	return route{
		method: http.MethodGet, path: path, summary: summary, reply: reflect.TypeFor[Reply](),
		handle: func(h *handler, c daemon.Control) http.HandlerFunc {
			return read(h, func(ctx context.Context, caller daemon.Caller) (Reply, error) { return f(c, ctx, caller) })
		},
	}
}

func writer[Request, Reply any](method, path, summary string, f func(daemon.Control, context.Context, daemon.Caller, Request) (Reply, error)) route {
	return route{
		method: method, path: path, summary: summary,
		request: reflect.TypeFor[Request](), reply: reflect.TypeFor[Reply](),
		handle: func(h *handler, c daemon.Control) http.HandlerFunc {
			return call(h, func(ctx context.Context, caller daemon.Caller, r Request) (Reply, error) { return f(c, ctx, caller, r) })
		},
	}
}
