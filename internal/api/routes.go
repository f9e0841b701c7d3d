// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"net/http"
	"reflect"
	"strings"

	"xsched/internal/control"
)

// route is one typed call under control.Prefix. The mux and the OpenAPI document are both built
// from the table below, so they cannot differ.
type route struct {
	method, path, summary string
	request, reply        reflect.Type // request nil: no body
	query                 reflect.Type // of the query; nil: none
	parameter             string       // last part of the path; empty: none
	handle                func(*handler, control.Control) http.HandlerFunc
}

func routes() []route {
	return []route{
		reader("/version", "Version and configuration of the daemon", control.Control.Version),
		reader("/processes", "All managed programs and their queues", control.Control.List),
		reader("/devices", "All known GPUs", control.Control.Devices),
		reader("/stats", "Statistics of the daemon; answers even while the engine is blocked", control.Control.Stats),

		finder("/history", "Who used each GPU: spans of the last minute, series of up to an hour", control.Control.History),
		finder("/journal", "Preemptions, changes and their authors, faults, programs that joined or left", control.Control.Journal),
		finder("/report", "Who used how much of the GPUs; users get their own rows, the daemon's user and root all", control.Control.Report),

		reader("/policy", "The policy in force", reading(control.Control.Policy)),
		writer("PUT", "/policy", "Select a policy, or set its quantum", control.Control.Policy),
		reader("/mode", "The mode in force", reading(control.Control.Mode)),
		writer("PUT", "/mode", "Select a mode", control.Control.Mode),

		writer("POST", "/hint", "Change scheduling hints; the reply has all hints in force", control.Control.Hint),
		writer("POST", "/suspend", "Suspend a program's GPU work until it is resumed", control.Control.Suspend),
		writer("POST", "/resume", "Resume a suspended program", control.Control.Resume),
		writer("POST", "/attach", "Manage a running program that has no shim", control.Control.Attach),
		writer("POST", "/detach", "Stop managing an attached program", control.Control.Detach),
		writer("POST", "/evict", "Move a program's memory to host memory until it is restored", control.Control.Evict),
		writer("POST", "/restore", "Bring a program's memory back to its GPUs", control.Control.Restore),
		writer("POST", "/queues", "Hardware queues of a program; only for its user and root", control.Control.Queues),
		reader("/config", "The configuration in force and its sources; only for the daemon's user and root", control.Control.Config),
		writer("POST", "/reload", "Read the configuration file again", control.Control.Reload),
		reader("/grants", "Hints of Kubernetes pods; only for the daemon's user and root", reading(control.Control.Grants)),
		replacer("/grants/{source}", "Replace the grants of a source", maxGrantsBytes, func(r *control.GrantsRequest, source string) { r.Source = source }, control.Control.Grants),
		reader("/holds", "Groups of pods that are suspended on all nodes; only for the daemon's user and root", reading(control.Control.Holds)),
		replacer("/holds/{source}", "Replace the holds of a source", maxBodyBytes, func(r *control.HoldsRequest, source string) { r.Source = source }, control.Control.Holds),
		writer("POST", "/alert-test", "Send a test alert; only for the daemon's user and root", control.Control.AlertTest),
		writer("POST", "/wedge", "Block the engine (fault injection; virtual GPUs only)", control.Control.Wedge),
	}
}

// reading adapts a call whose zero request only reads.
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

// finder is a reader whose query has the fields of the request, by their JSON names.
func finder[Request, Reply any](path, summary string, f func(control.Control, context.Context, control.Caller, Request) (Reply, error)) route {
	return route{
		method: http.MethodGet, path: path, summary: summary, query: reflect.TypeFor[Request](), reply: reflect.TypeFor[Reply](),
		handle: func(h *handler, c control.Control) http.HandlerFunc {
			return func(w http.ResponseWriter, r *http.Request) {
				var request Request
				if err := readQuery(r.URL.RawQuery, &request); err != nil {
					writeError(w, err)
					return
				}
				read(h, func(ctx context.Context, caller control.Caller) (Reply, error) { return f(c, ctx, caller, request) })(w, r)
			}
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

// replacer is a writer whose path ends with the name of what the body replaces. The body may be large,
// so it is read only if the caller is on the host and may read what it replaces.
func replacer[Request, Reply any](path, summary string, most int64, name func(*Request, string), f func(control.Control, context.Context, control.Caller, Request) (Reply, error)) route {
	parameter := path[strings.IndexByte(path, '{')+1 : len(path)-1]
	return route{
		method: http.MethodPut, path: path, summary: summary, parameter: parameter,
		request: reflect.TypeFor[Request](), reply: reflect.TypeFor[Reply](),
		handle: func(h *handler, c control.Control) http.HandlerFunc {
			return h.onHost(func(w http.ResponseWriter, r *http.Request, caller control.Caller) {
				var request Request
				if _, err := f(c, r.Context(), caller, request); err != nil {
					writeError(w, err)
					return
				}
				if err := readJSON(w, r, most, &request); err != nil {
					writeError(w, err)
					return
				}
				name(&request, r.PathValue(parameter))
				read(h, func(ctx context.Context, caller control.Caller) (Reply, error) { return f(c, ctx, caller, request) })(w, r)
			})
		},
	}
}
