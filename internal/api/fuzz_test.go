// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"encoding/json"
	"errors"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"unicode/utf8"

	"xsched/internal/control"
	"xsched/internal/control/upstream"
	"xsched/internal/model"
)

// FuzzHint checks that a hint is accepted with all values in range, or rejected in XSched's format.
func FuzzHint(f *testing.F) {
	for _, seed := range []string{
		`{"hint_type":1,"handle":65536,"priority":10}`, `{"hint_type":2,"pid":1,"handle":0,"utilization":75}`,
		`{"hint_type":3,"timeslice":5000}`, `{"hint_type":3,"timeslice":1}`, `{"hint_type":3,"timeslice":9223372036854775807}`,
		`{"hint_type":7,"pid":3,"display":1}`, `{}`, `null`, `{"hint_type":1e3}`, `{"hint_type":null}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		h, err := parseHint(body)
		if err != nil {
			if e, ok := errors.AsType[*xerror](err); !ok || e.status != 400 || e.text == "" {
				t.Fatalf("%v", err)
			}
			return
		}
		switch *h.Type {
		case upstream.HintPriority:
			if *h.Handle == 0 || *h.Priority < int(model.PriorityNever) || *h.Priority > int(model.PriorityMax) {
				t.Fatalf("%s", body)
			}
		case upstream.HintUtilization:
			if *h.Utilization < 0 || *h.Utilization > 100 || h.PID == nil && h.Handle == nil {
				t.Fatalf("%s", body)
			}
		case upstream.HintTimeslice:
			if *h.Timeslice <= 0 {
				t.Fatalf("%s", body)
			}
			if set, note := upstream.ClampTimeslice(*h.Timeslice); set < 100 || set > 10_000_000 || (note == "") != (set == *h.Timeslice) {
				t.Fatalf("%s: set to %d us, note %q", body, set, note)
			}
		case upstream.HintWindowActive:
			if *h.PID <= 0 || h.Display == nil {
				t.Fatalf("%s", body)
			}
		default:
			t.Fatalf("type %d was taken", *h.Type)
		}
	})
}

// FuzzRequest sends arbitrary requests to every route. No handler panics, every
// reply is JSON with a valid status, and a rejected request changes nothing.
func FuzzRequest(f *testing.F) {
	f.Add("POST", "/hint", "", []byte(`{"hint_type":1,"handle":65536,"priority":10}`))
	f.Add("POST", "/config/10000", "level=1&threshold=4&batch_size=2", []byte(nil))
	f.Add("POST", "/policy", "policy=1", []byte(nil))
	f.Add("GET", "/xqueue/10000", "", []byte(nil))
	f.Add("GET", control.Prefix+"/history", "seconds=60&device=0000:01:00.0", []byte(nil))
	f.Add("GET", control.Prefix+"/journal", "since=18446744073709551615&max=-1", []byte(nil))
	f.Add("GET", control.Prefix+"/report", "since=30d&by=user", []byte(nil))
	f.Add("PUT", control.Prefix+"/policy", "", []byte(`{"name":"HPF"}`))
	f.Add("POST", control.Prefix+"/hint", "", []byte(`{"pid":101,"priority":3}`))
	f.Add("PUT", control.Prefix+"/grants/dra", "", []byte(`{"grants":[{"id":"a","priority":3}]}`))
	f.Fuzz(func(t *testing.T, method, path, query string, body []byte) {
		if strings.HasPrefix(path, control.Prefix+eventsPath) || !utf8.ValidString(path) {
			return // the event stream does not end
		}
		w := newWorld()
		r := httptest.NewRequest("GET", "/", strings.NewReader(string(body)))
		r.Method, r.URL.Path, r.URL.RawQuery = method, path, query
		r.Header.Set("Content-Type", "application/json")
		a := httptest.NewRecorder()
		Handler(&anything{world: w}, as(0)).ServeHTTP(a, r)
		if a.Code >= 300 && a.Code < 400 { // the mux cleans a path
			return
		}
		if a.Code != 200 && w.taken() != "" {
			t.Errorf("%s %s?%s: refused with %d, but something was done", method, path, query, a.Code)
		}
		if a.Header().Get("Content-Type") == "application/json" && !json.Valid(a.Body.Bytes()) {
			t.Errorf("%s %s: %q", method, path, a.Body)
		}
		if a.Code == 500 || a.Code < 200 {
			t.Errorf("%s %s?%s: %d %s", method, path, query, a.Code, a.Body)
		}
	})
}

// anything implements the calls that world lacks.
type anything struct {
	*world
	fake
}

func (a *anything) Version(c context.Context, d control.Caller) (control.Version, error) {
	return a.world.Version(c, d)
}

func (a *anything) List(c context.Context, d control.Caller) (control.List, error) {
	return a.world.List(c, d)
}

func (a *anything) Devices(c context.Context, d control.Caller) (control.Devices, error) {
	return a.world.Devices(c, d)
}

func (a *anything) Stats(c context.Context, d control.Caller) (control.Stats, error) {
	return a.world.Stats(c, d)
}

func (a *anything) Parts() []control.Part { return a.world.Parts() }

func (a *anything) History(c context.Context, d control.Caller, r control.HistoryRequest) (control.History, error) {
	return a.fake.History(c, d, r)
}

func (a *anything) Journal(c context.Context, d control.Caller, r control.JournalRequest) (control.Journal, error) {
	return a.fake.Journal(c, d, r)
}

func (a *anything) Report(c context.Context, d control.Caller, r control.ReportRequest) (control.Report, error) {
	return a.fake.Report(c, d, r)
}

func (a *anything) Hint(c context.Context, d control.Caller, r control.HintRequest) (control.HintReply, error) {
	return a.world.Hint(c, d, r)
}

func (a *anything) Policy(c context.Context, d control.Caller, r control.PolicyRequest) (control.PolicyReply, error) {
	return a.world.Policy(c, d, r)
}

func (a *anything) Holds(c context.Context, d control.Caller, r control.HoldsRequest) (control.HoldsReply, error) {
	return a.fake.Holds(c, d, r)
}

func (a *anything) Grants(c context.Context, d control.Caller, r control.GrantsRequest) (control.GrantsReply, error) {
	return a.fake.Grants(c, d, r)
}

// FuzzDiag checks that no reply of the kernel causes a panic, and that only a
// matching established socket has an owner.
func FuzzDiag(f *testing.F) {
	src, dst := netip.MustParseAddrPort("127.0.0.1:40000"), netip.MustParseAddrPort("127.0.0.1:50000")
	good := make([]byte, 16+diagMsgBytes)
	good[4] = sockDiagByFamily
	good[17] = tcpEstablished
	copy(good[20:], sockID(src, dst))
	good[16+4+diagIDBytes+16] = 1
	f.Add(good)
	f.Add(good[:40])
	f.Add([]byte{36, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xfe, 0xff, 0xff, 0xff})
	f.Fuzz(func(t *testing.T, b []byte) {
		uid, _, err := parseDiag(b, src, dst)
		if (err == nil) != (uid >= 0) {
			t.Fatalf("%d, %v", uid, err)
		}
		if err == nil && string(b[20:56]) != string(sockID(src, dst)[:36]) {
			t.Fatal("another connection's owner")
		}
		_, _, _ = scanOwner(string(b), src, dst)
	})
}
