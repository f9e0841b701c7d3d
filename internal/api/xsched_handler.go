// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"sync"

	"xsched/internal/control"
	"xsched/internal/control/upstream"
	"xsched/internal/model"
	"xsched/internal/policy"
)

// xsched serves upstream XSched's routes. Configuration and hints apply to the whole program,
// except for hints on queues that are scheduled individually.
type xsched struct {
	*handler
	control control.Control

	mu      sync.Mutex
	windows map[uint64]int // PID of the active window's program, by display
}

// maxDisplays bounds windows; a real machine has a few.
const maxDisplays = 256

// maxXThreshold is the largest threshold and batch size that upstream's tools send.
const maxXThreshold = 0x10000

// xerror is an error in upstream's format.
type xerror struct {
	status int
	text   string
}

func (e *xerror) Error() string { return e.text }

func bad(text string) error { return &xerror{http.StatusBadRequest, text} }

var errNoXQueue = &xerror{http.StatusNotFound, "XQueue not found"}

func (x *xsched) register(mux *http.ServeMux) {
	mux.HandleFunc("GET /xqueues", x.answer(x.getXQueues))
	mux.HandleFunc("GET /xqueue/{handle}", x.answer(x.getXQueue))
	mux.HandleFunc("POST /config/{handle}", x.answer(x.postConfig))
	mux.HandleFunc("GET /policy", x.answer(x.getPolicy))
	mux.HandleFunc("POST /policy", x.answer(x.postPolicy))
	mux.HandleFunc("POST /hint", x.answer(x.postHint))
}

type xrequest struct {
	context.Context
	*http.Request
	caller control.Caller
}

func success() any { return map[string]string{"info": "success"} }

// answer writes f's reply, or its error in upstream's format.
func (x *xsched) answer(f func(xrequest) (any, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), control.CallTimeout)
		defer cancel()
		r.Body = http.MaxBytesReader(w, r.Body, maxBodyBytes)
		caller, err := x.identify(r)
		var reply any
		if err == nil {
			reply, err = f(xrequest{ctx, r, caller})
		}
		if err == nil {
			writeJSON(w, http.StatusOK, reply)
			return
		}
		status, _ := control.EncodeError(err)
		if e, ok := errors.AsType[*xerror](err); ok {
			status = e.status
		}
		writeJSON(w, status, map[string]string{"error": err.Error()})
	}
}

// list reads all queues. A change that reads takes its turn here, without the wait for its effect;
// charged has done so for the others.
func (x *xsched) list(r xrequest) (control.List, error) {
	if r.Method != http.MethodGet {
		end, err := limits.reads.begin(r, r.caller.User)
		if err != nil {
			return control.List{}, err
		}
		defer end()
	}
	return x.control.List(r, r.caller)
}

func (x *xsched) getXQueues(r xrequest) (any, error) {
	all, err := x.list(r)
	return upstream.FromList(all), err
}

// queue finds the queue of the path.
func (x *xsched) queue(r xrequest) (upstream.QueueReply, error) {
	handle, ok := upstream.ParseHandle(r.PathValue("handle"))
	if !ok {
		return upstream.QueueReply{}, bad("invalid handle")
	}
	return x.lookUp(r, handle)
}

func (x *xsched) lookUp(r xrequest, handle uint64) (upstream.QueueReply, error) {
	all, err := x.list(r)
	if err != nil {
		return upstream.QueueReply{}, err
	}
	q, ok := upstream.FromList(all).Find(handle)
	if !ok {
		return upstream.QueueReply{}, errNoXQueue
	}
	return q, nil
}

func (x *xsched) getXQueue(r xrequest) (any, error) {
	q, err := x.queue(r)
	return q, err
}

// number reads one parameter. Upstream's xcli sends `none` for a value that should not change.
func number(query url.Values, name string, none, least, most int64, text string) (*int, error) {
	if !query.Has(name) {
		return nil, nil
	}
	n, err := strconv.ParseInt(query.Get(name), 10, 64)
	switch {
	case err == nil && n == none:
		return nil, nil
	case err != nil || n < least || n > most:
		return nil, bad(text)
	}
	value := int(n)
	return &value, nil
}

func (x *xsched) postConfig(r xrequest) (any, error) {
	if _, ok := upstream.ParseHandle(r.PathValue("handle")); !ok {
		return nil, bad("invalid handle")
	}
	query := r.URL.Query()
	level, err := number(query, "level", 0, int64(model.LevelBlock), int64(model.LevelInterrupt), "invalid level")
	if err != nil {
		return nil, err
	}
	threshold, err := number(query, "threshold", -1, 1, maxXThreshold, "invalid command threshold")
	if err != nil {
		return nil, err
	}
	batch, err := number(query, "batch_size", -1, 1, maxXThreshold, "invalid command batch size")
	if err != nil {
		return nil, err
	}
	q, err := x.queue(r)
	if err != nil {
		return nil, err
	}
	if level == nil && threshold == nil && batch == nil {
		return map[string]string{"warning": "no change"}, nil
	}
	if threshold != nil {
		q.Queue.Threshold = int64(*threshold)
	}
	if batch != nil {
		q.Queue.BatchSize = int64(*batch)
	}
	if (threshold != nil || batch != nil) && q.Queue.BatchSize >= q.Queue.Threshold {
		return nil, bad("batch size must be less than threshold")
	}
	if _, err = x.control.Hint(r, r.caller, control.HintRequest{PID: q.Process.PID, Level: level, InFlight: threshold, Batch: batch}); err != nil || level == nil {
		return success(), err
	}
	return success(), x.checkLevel(r, q.Queue.Handle, *level)
}

// checkLevel refuses to call a level set that is not in force, for example because the mode has
// another one. Control.Hint has waited for the change.
func (x *xsched) checkLevel(r xrequest, handle uint64, level int) error {
	all, err := x.list(r)
	if err != nil {
		return err
	}
	q, ok := upstream.FromList(all).Find(handle)
	if !ok {
		return errNoXQueue
	}
	mode, forced := all.ModeOn(q.Queue.PCI())
	switch {
	case q.Queue.Level == level:
		return nil
	case mode == string(model.ModeLevel) && forced != level:
		return &control.Error{Kind: control.ErrNotSupported, Cause: fmt.Sprintf("level %d is set, but the mode is %s", level, control.ModeText(mode, forced)), Remedy: "see `xsched mode`"}
	}
	return &control.Error{Kind: control.ErrNotSupported, Cause: fmt.Sprintf("level %d is set, but this queue has level %d", level, q.Queue.Level), Remedy: "see `xsched list --json` for the reason"}
}

func (x *xsched) getPolicy(r xrequest) (any, error) {
	now, err := x.control.Policy(r, r.caller, control.PolicyRequest{})
	return upstream.PolicyReplyOf(now.Name), err
}

func (x *xsched) postPolicy(r xrequest) (any, error) {
	name := r.URL.Query().Get("policy")
	if n, err := strconv.Atoi(name); err == nil {
		name = policy.NameOf(n)
	}
	if policy.Number(name) == 0 {
		return nil, bad("invalid policy")
	}
	_, err := x.control.Policy(r, r.caller, control.PolicyRequest{Name: name})
	return success(), err
}

func (x *xsched) postHint(r xrequest) (any, error) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, bad("invalid body")
	}
	hint, err := parseHint(body)
	if err != nil {
		return nil, err
	}
	switch *hint.Type {
	case upstream.HintPriority:
		priority := int32(*hint.Priority)
		return x.hint(r, hint, control.HintRequest{Priority: &priority})
	case upstream.HintUtilization:
		// Upstream allows a share of 0; the smallest share here is 1 %.
		share := max(1, *hint.Utilization)
		return x.hint(r, hint, control.HintRequest{Utilization: &share})
	case upstream.HintTimeslice:
		return x.timeslice(r, *hint.Timeslice)
	default:
		return x.window(r, hint)
	}
}

// timeslice sets the turn of rotating policies. Upstream takes any length; here the nearest possible
// one is set, and the reply says so.
func (x *xsched) timeslice(r xrequest, us int64) (any, error) {
	set, note := upstream.ClampTimeslice(us)
	_, err := x.control.Policy(r, r.caller, control.PolicyRequest{QuantumUS: set})
	if note == "" {
		return success(), err
	}
	return map[string]string{"info": "success", "note": note}, err
}

// hint changes the program that a hint names by handle or PID.
func (x *xsched) hint(r xrequest, h upstream.Hint, change control.HintRequest) (any, error) {
	if h.Handle != nil && *h.Handle != 0 {
		q, err := x.lookUp(r, *h.Handle)
		if err != nil {
			return nil, err
		}
		change.PID = q.Process.PID
		change.Queue = q.Queue.Own()
	} else {
		change.PID = *h.PID
	}
	_, err := x.control.Hint(r, r.caller, change)
	return success(), err
}

// window marks a program as the active window of a display and unmarks the previous one.
func (x *xsched) window(r xrequest, h upstream.Hint) (any, error) {
	yes, no := true, false
	if _, err := x.control.Hint(r, r.caller, control.HintRequest{PID: *h.PID, WindowActive: &yes}); err != nil {
		return nil, err
	}
	x.mu.Lock()
	if x.windows == nil || len(x.windows) >= maxDisplays {
		x.windows = map[uint64]int{}
	}
	before := x.windows[*h.Display]
	x.windows[*h.Display] = *h.PID
	x.mu.Unlock()
	if before != 0 && before != *h.PID {
		// Ignore errors: the program may have ended or belong to another user.
		_, _ = x.control.Hint(r, r.caller, control.HintRequest{PID: before, WindowActive: &no})
	}
	return success(), nil
}

// parseHint reads the body of POST /hint and checks all that the type needs.
func parseHint(body []byte) (upstream.Hint, error) {
	var h upstream.Hint
	var fields map[string]json.RawMessage
	if json.Unmarshal(body, &fields) != nil || fields == nil {
		return h, bad("invalid JSON")
	}
	for _, f := range []struct {
		name string
		into any
		text string
	}{
		{"hint_type", &h.Type, "invalid hint type"},
		{"handle", &h.Handle, "invalid handle"},
		{"pid", &h.PID, "invalid pid"},
		{"priority", &h.Priority, "invalid priority"},
		{"utilization", &h.Utilization, "invalid utilization"},
		{"timeslice", &h.Timeslice, "invalid timeslice"},
		{"display", &h.Display, "invalid display"},
	} {
		if raw, ok := fields[f.name]; ok && json.Unmarshal(raw, f.into) != nil {
			return h, bad(f.text)
		}
	}
	return h, checkHint(h)
}

// checkHint validates a hint and answers with upstream's texts.
func checkHint(h upstream.Hint) error {
	if h.Type == nil {
		return bad("missing hint type")
	}
	given := h.Handle != nil && *h.Handle != 0
	pid := h.PID != nil && *h.PID != 0
	if h.PID != nil && *h.PID < 0 {
		return bad("invalid pid")
	}
	switch *h.Type {
	case upstream.HintPriority:
		switch {
		case !given:
			return bad("invalid handle")
		case h.Priority == nil:
			return bad("missing priority")
		case *h.Priority < int(model.PriorityNever) || *h.Priority > int(model.PriorityMax):
			return bad("invalid priority")
		}
	case upstream.HintUtilization:
		switch {
		case !given && !pid:
			return bad("handle or pid is required")
		case h.Utilization == nil:
			return bad("missing utilization")
		case *h.Utilization < 0 || *h.Utilization > model.UtilizationMax:
			return bad("invalid utilization")
		}
	case upstream.HintTimeslice:
		switch {
		case h.Timeslice == nil:
			return bad("missing timeslice")
		case *h.Timeslice <= 0:
			return bad("invalid timeslice")
		}
	case upstream.HintWindowActive:
		switch {
		case !pid:
			return bad("missing pid")
		case h.Display == nil:
			return bad("missing display")
		}
	default:
		return bad("invalid hint type")
	}
	return nil
}
