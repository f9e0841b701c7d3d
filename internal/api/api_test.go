// SPDX-License-Identifier: Apache-2.0

package api

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"xsched/internal/control"
	"xsched/internal/control/client"
)

// fake echoes the request of every call, or returns err.
type fake struct {
	control.Control // nil: a method that is not overridden panics

	err     error
	callers chan control.Caller
	entered chan struct{} // if not nil, Stats signals its start here
	release chan struct{} // and then waits for this
}

func (f *fake) saw(c control.Caller) {
	select {
	case f.callers <- c:
	default:
	}
}

func (f *fake) Version(_ context.Context, c control.Caller) (control.Version, error) {
	f.saw(c)
	return control.Version{Version: "v1", PID: 7}, f.err
}

func (f *fake) List(context.Context, control.Caller) (control.List, error) {
	return control.List{Policy: "hpf", Processes: []control.Process{{PID: 3, Queues: []control.Queue{{Level: 3}}}}}, f.err
}

func (f *fake) Devices(context.Context, control.Caller) (control.Devices, error) {
	return control.Devices{Devices: []control.Device{{ID: "0000:01:00.0"}}}, f.err
}

func (f *fake) Stats(ctx context.Context, _ control.Caller) (control.Stats, error) {
	if f.entered != nil {
		close(f.entered)
		select {
		case <-f.release:
		case <-ctx.Done():
		}
	}
	return control.Stats{Sessions: 5}, f.err
}

func (f *fake) Parts() []control.Part { return nil }

func (f *fake) History(_ context.Context, _ control.Caller, r control.HistoryRequest) (control.History, error) {
	return control.History{FromNS: int64(r.Seconds), Devices: []control.DeviceHistory{{Device: r.Device}}}, f.err
}

func (f *fake) Journal(_ context.Context, _ control.Caller, r control.JournalRequest) (control.Journal, error) {
	out := control.Journal{Entries: []control.JournalEntry{}, Next: r.Since + uint64(r.Max)}
	if r.PerKind {
		out.Missed = 1
	}
	return out, f.err
}

func (f *fake) Report(_ context.Context, _ control.Caller, r control.ReportRequest) (control.Report, error) {
	return control.Report{By: r.By + "," + r.Since}, f.err
}

func (f *fake) Hint(_ context.Context, _ control.Caller, r control.HintRequest) (control.HintReply, error) {
	reply := control.HintReply{PID: r.PID}
	if r.Priority != nil {
		reply.Priority = *r.Priority
	}
	return reply, f.err
}

func (f *fake) Policy(_ context.Context, _ control.Caller, r control.PolicyRequest) (control.PolicyReply, error) {
	return control.PolicyReply{Name: "now-" + r.Name}, f.err
}

func (f *fake) Mode(_ context.Context, _ control.Caller, r control.ModeRequest) (control.ModeReply, error) {
	return control.ModeReply{Mode: "now-" + r.Mode, Level: r.Level}, f.err
}

func (f *fake) process(what string, r control.ProcessRequest) (control.ProcessReply, error) {
	return control.ProcessReply{PID: r.PID, Message: what}, f.err
}

func (f *fake) Suspend(_ context.Context, _ control.Caller, r control.ProcessRequest) (control.ProcessReply, error) {
	return f.process("suspend", r)
}

func (f *fake) Resume(_ context.Context, _ control.Caller, r control.ProcessRequest) (control.ProcessReply, error) {
	return f.process("resume", r)
}

func (f *fake) Attach(_ context.Context, _ control.Caller, r control.ProcessRequest) (control.ProcessReply, error) {
	return f.process("attach", r)
}

func (f *fake) Detach(_ context.Context, _ control.Caller, r control.ProcessRequest) (control.ProcessReply, error) {
	return f.process("detach", r)
}

func (f *fake) Evict(_ context.Context, _ control.Caller, r control.EvictRequest) (control.MemoryReply, error) {
	return control.MemoryReply{PID: r.PID, Memory: []control.Memory{{Device: "0000:01:00.0", MovableBytes: 1 << 30, Residency: control.MemoryLeaving}}, Message: "memory leaves"}, f.err
}

func (f *fake) Restore(_ context.Context, _ control.Caller, r control.ProcessRequest) (control.MemoryReply, error) {
	return control.MemoryReply{PID: r.PID, Memory: []control.Memory{}, Message: "memory returns"}, f.err
}

func (f *fake) Queues(_ context.Context, _ control.Caller, r control.ProcessRequest) (control.HardwareQueues, error) {
	return control.HardwareQueues{PID: r.PID, Queues: []control.HardwareQueue{{Device: "0000:01:00.0", Kind: "compute", ID: 2}}}, f.err
}

func (f *fake) Config(context.Context, control.Caller) (control.ConfigReply, error) {
	return control.ConfigReply{Values: []control.ConfigValue{{Key: "policy", Value: "HPF", Source: control.SourceDefault}}}, f.err
}

func (f *fake) Reload(context.Context, control.Caller, control.ReloadRequest) (control.ReloadReply, error) {
	return control.ReloadReply{File: "config.yaml", Changed: []string{"policy"}}, f.err
}

func (f *fake) Grants(_ context.Context, _ control.Caller, r control.GrantsRequest) (control.GrantsReply, error) {
	reply := control.GrantsReply{Grants: []control.GrantEntry{{Source: r.Source}}, Added: len(r.Grants)}
	return reply, f.err
}

func (f *fake) Holds(_ context.Context, _ control.Caller, r control.HoldsRequest) (control.HoldsReply, error) {
	reply := control.HoldsReply{Holds: []control.HoldEntry{}}
	for _, h := range r.Holds {
		reply.Holds = append(reply.Holds, control.HoldEntry{Source: r.Source, Hold: h})
	}
	return reply, f.err
}

func (f *fake) AlertTest(context.Context, control.Caller, control.AlertTest) (control.AlertTest, error) {
	return control.AlertTest{}, f.err
}

func (f *fake) Wedge(_ context.Context, _ control.Caller, r control.WedgeRequest) (control.WedgeReply, error) {
	return control.WedgeReply(r), f.err
}

// start serves f on a fresh socket for the length of the test.
func start(t *testing.T, f *fake) (*client.Client, context.CancelFunc, <-chan error) {
	t.Helper()
	f.callers = make(chan control.Caller, 1)
	socket := filepath.Join(t.TempDir(), "c.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- Serve(ctx, l, f, Options{Log: slog.New(slog.DiscardHandler)}) }()
	client := client.New(socket)
	t.Cleanup(func() {
		client.Close()
		cancel()
	})
	return client, cancel, done
}

func TestEveryCallReachesItsMethod(t *testing.T) {
	f := &fake{}
	c, _, _ := start(t, f)
	ctx := t.Context()
	priority := int32(9)

	check := func(name string, got any, err error, want any) {
		t.Helper()
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s = %+v, %v; want %+v", name, got, err, want)
		}
	}
	version, err := c.Version(ctx)
	check("Version", version, err, control.Version{Version: "v1", PID: 7})
	list, err := c.List(ctx)
	check("List", list.Processes[0].Queues[0].Level, err, 3)
	devices, err := c.Devices(ctx)
	check("Devices", devices.Devices[0].ID, err, "0000:01:00.0")
	stats, err := c.Stats(ctx)
	check("Stats", stats.Sessions, err, 5)
	history, err := c.History(ctx, control.HistoryRequest{Seconds: 5, Device: "a&b"})
	check("History", history, err, control.History{FromNS: 5, Devices: []control.DeviceHistory{{Device: "a&b"}}})
	journal, err := c.Journal(ctx, control.JournalRequest{Since: 1 << 63, Max: 3})
	check("Journal", journal.Next+journal.Missed, err, uint64(1<<63+3))
	journal, err = c.Journal(ctx, control.JournalRequest{PerKind: true})
	check("Journal of each kind", journal.Missed, err, uint64(1))
	report, err := c.Report(ctx, control.ReportRequest{Since: "30d", By: control.ByPod})
	check("Report", report.By, err, "pod,30d")
	hint, err := c.Hint(ctx, control.HintRequest{PID: 4, Priority: &priority})
	check("Hint", hint, err, control.HintReply{PID: 4, Hints: control.Hints{Priority: 9}})
	policy, err := c.Policy(ctx)
	check("Policy", policy.Name, err, "now-")
	policy, err = c.SetPolicy(ctx, control.PolicyRequest{Name: "fifo"})
	check("SetPolicy", policy.Name, err, "now-fifo")
	mode, err := c.Mode(ctx)
	check("Mode", mode.Mode, err, "now-")
	mode, err = c.SetMode(ctx, control.ModeRequest{Mode: "level", Level: 2})
	check("SetMode", mode, err, control.ModeReply{Mode: "now-level", Level: 2})
	queues, err := c.Queues(ctx, 11)
	check("Queues", queues.Queues[0].ID, err, uint64(2))
	holds, err := c.Holds(ctx)
	check("Holds", holds, err, control.HoldsReply{Holds: []control.HoldEntry{}})
	held := control.Hold{Namespace: "ml", Group: "train", Priority: new(int32(-10)), FromNS: 1, UntilNS: 2}
	holds, err = c.SetHolds(ctx, control.HoldsRequest{Source: "gang", Holds: []control.Hold{held}})
	check("SetHolds", holds, err, control.HoldsReply{Holds: []control.HoldEntry{{Source: "gang", Hold: held}}})
	grants, err := c.Grants(ctx)
	check("Grants", grants.Grants[0].Source, err, "")
	grants, err = c.SetGrants(ctx, control.GrantsRequest{Source: "dra", Grants: make([]control.Grant, control.MaxGrants)})
	check("SetGrants", grants, err, control.GrantsReply{Grants: []control.GrantEntry{{Source: "dra"}}, Added: control.MaxGrants})
	alerts, err := c.AlertTest(ctx)
	check("AlertTest", alerts, err, control.AlertTest{})
	wedge, err := c.Wedge(ctx, 20*time.Millisecond)
	check("Wedge", wedge.DurationMS, err, int64(20))
	for name, call := range map[string]func(context.Context, int) (control.ProcessReply, error){
		"suspend": c.Suspend, "resume": c.Resume, "attach": c.Attach, "detach": c.Detach,
	} {
		reply, err := call(ctx, 11)
		check(name, reply, err, control.ProcessReply{PID: 11, Message: name})
	}

	if caller := <-f.callers; caller.User.UID != os.Getuid() || caller.PID != os.Getpid() {
		t.Errorf("caller = %+v, want uid %d and pid %d", caller, os.Getuid(), os.Getpid())
	}
}

func TestErrorsCrossTheWire(t *testing.T) {
	f := &fake{}
	c, _, _ := start(t, f)
	for _, kind := range []error{control.ErrNotFound, control.ErrNotAllowed, control.ErrNotSupported, control.ErrInvalid, control.ErrUnavailable} {
		f.err = &control.Error{Kind: kind, Cause: "the cause", Remedy: "the remedy"}
		_, err := c.List(t.Context())
		if !errors.Is(err, kind) || err.Error() != "the cause; the remedy" {
			t.Errorf("%v came out as %v", kind, err)
		}
	}
	f.err = errors.New("something else")
	if _, err := c.List(t.Context()); err == nil || err.Error() != "something else" {
		t.Errorf("a plain error came out as %v", err)
	}
}

func TestBadRequests(t *testing.T) {
	h := Handler(&fake{}, as(0))
	for _, test := range []struct{ name, method, route, kind, body, code string }{
		{"unknown route", "GET", "/nothing", "", "", "not_found"},
		{"wrong method", "DELETE", "/policy", "", "", "not_found"},
		{"no content type", "PUT", "/policy", "", `{"name":"x"}`, "invalid"},
		{"not JSON", "PUT", "/policy", "application/json", `{`, "invalid"},
		{"unknown field", "PUT", "/policy", "application/json", `{"nome":"x"}`, "invalid"},
		{"two values", "PUT", "/policy", "application/json", `{"name":"x"}{}`, "invalid"},
		{"too large", "PUT", "/policy", "application/json", `{"name":"` + strings.Repeat("x", maxBodyBytes) + `"}`, "invalid"},
		{"unknown parameter", "GET", "/history?second=3", "", "", "invalid"},
		{"repeated parameter", "GET", "/history?seconds=3&seconds=4", "", "", "invalid"},
		{"parameter without a number", "GET", "/journal?since=-1", "", "", "invalid"},
		{"malformed query", "GET", "/journal?since=%zz", "", "", "invalid"},
		{"priority beyond 32 bits", "POST", "/hint", "application/json", `{"pid":1,"priority":99999999999}`, "invalid"},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := httptest.NewRequestWithContext(t.Context(), test.method, control.Prefix+test.route, strings.NewReader(test.body))
			r.Header.Set("Content-Type", test.kind)
			answer := httptest.NewRecorder()
			h.ServeHTTP(answer, r)
			if body := answer.Body.String(); !strings.Contains(body, `"code":"`+test.code+`"`) {
				t.Errorf("answered %d %s, want code %s", answer.Code, body, test.code)
			}
		})
	}
}

func TestStopLetsRequestsFinish(t *testing.T) {
	f := &fake{entered: make(chan struct{}), release: make(chan struct{})}
	c, cancel, done := start(t, f)
	answer := make(chan error, 1)
	go func() {
		_, err := c.Stats(context.Background())
		answer <- err
	}()
	<-f.entered
	cancel()
	close(f.release)
	if err := <-answer; err != nil {
		t.Errorf("request under way: %v", err)
	}
	if err := <-done; err != nil {
		t.Errorf("Serve = %v", err)
	}
}

// The server answers connections within its limit and closes others silently. A request on each
// connection shows which it is, because the server also closes silent connections in the end.
func TestConnectionsAreBounded(t *testing.T) {
	c, _, _ := start(t, &fake{})
	held := fillPlaces(t, "unix", c.Socket())
	for _, conn := range held {
		_ = conn.Close()
	}
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) { // until the server has noticed the closed ends
		_, err := c.Version(t.Context())
		if err == nil {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("places did not come back: %v", err)
		}
	}
}

// fillPlaces opens as many connections as a listener allows a user and checks that one more fails.
func fillPlaces(t *testing.T, network, address string) (held []net.Conn) {
	t.Helper()
	ask := func() error {
		conn, err := net.Dial(network, address)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		if _, err := fmt.Fprintf(conn, "GET %s/version HTTP/1.1\r\nHost: localhost\r\n\r\n", control.Prefix); err != nil {
			return err
		}
		answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			return err
		}
		held = append(held, conn)
		return answer.Body.Close()
	}
	for i := range maxConnectionsPerUser {
		if err := ask(); err != nil {
			t.Fatalf("connection %d: %v", i, err)
		}
	}
	for range 10 {
		if ask() == nil {
			t.Error("a connection beyond the bound was kept")
		}
	}
	return held
}

// Handler serves c without a listener.
func Handler(c control.Control, identify Identify) http.Handler {
	return newMux(c, identify, newFeed(c), nil)
}

// refusing rejects every caller but root, as the daemon does.
type refusing struct{ fake }

func (f *refusing) Grants(ctx context.Context, c control.Caller, r control.GrantsRequest) (control.GrantsReply, error) {
	if !c.User.Root() {
		return control.GrantsReply{}, control.Errorf(control.ErrNotAllowed, "use sudo", "only root may change the grants")
	}
	return f.fake.Grants(ctx, c, r)
}

// unread is the body of a request that must not be read.
type unread struct{ t *testing.T }

func (u unread) Read([]byte) (int, error) {
	u.t.Error("the body of a refused request was read")
	return 0, io.EOF
}

// TestRefusedBody checks that a large body of a caller without rights costs the daemon nothing.
func TestRefusedBody(t *testing.T) {
	put := func(uid int, body io.Reader) int {
		w, r := httptest.NewRecorder(), httptest.NewRequest(http.MethodPut, control.Prefix+"/grants/dra", body)
		r.Header.Set("Content-Type", "application/json")
		Handler(&refusing{}, as(uid)).ServeHTTP(w, r)
		return w.Code
	}
	if code := put(1000, unread{t}); code != http.StatusForbidden {
		t.Errorf("a user got %d", code)
	}
	if code := put(0, strings.NewReader(`{"grants":[]}`)); code != http.StatusOK {
		t.Errorf("root got %d", code)
	}
}
