// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"flag"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"xsched/internal/control"
	"xsched/internal/control/upstream"
	"xsched/internal/identity"
	"xsched/internal/policy"
)

var update = flag.Bool("update", false, "write the golden files")

// golden compares with a file in testdata.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := "testdata/" + name
	if *update {
		if err := os.MkdirAll("testdata", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("differs from %s (go test -update writes it):\n%s", path, got)
	}
}

// world is a Control with two programs, of uid 1000 and 2000, that records changes.
type world struct {
	control.Control // nil: a method that is not overridden panics

	mu    sync.Mutex
	list  control.List
	stats control.Stats
	// statsRead counts the calls of Stats.
	statsRead int
	policy    string
	notes     []string
	silent    bool // the engine does not answer
}

func newWorld() *world {
	return &world{
		policy: "HPF",
		list: control.List{Policy: "HPF", Mode: "live", DefaultInFlight: 4, DefaultBatch: 2, Processes: []control.Process{
			{
				PID: 101, UID: 1000, Session: 1, Command: "python serve.py", Priority: 10, InFlight: 16, Batch: 8,
				Counters: control.Counters{HookedCalls: 900, Launches: 500, GateWaits: 3, GateWaitNS: 1_500_000},
				Queues: []control.Queue{
					{Index: 0, Device: "0000:01:00.0", Busy: true, State: "running", Level: 3, RanNS: 2_000_000_000},
					{Index: 1, Device: "0001:81:1f.7", State: "idle", Level: 1, Stream: true, Hints: control.Hints{PerQueue: true}},
				},
				Memory: []control.Memory{{Device: "0000:01:00.0", UsedBytes: 3 << 30, QuotaBytes: 40 << 30, Refused: 2, MovableBytes: 2 << 30, AwayBytes: 1 << 30, Residency: control.MemoryAway, MovesOut: 2, MovesBack: 1, BytesOut: 2 << 30, BytesBack: 1 << 30}},
				Protection: []control.Protection{{
					Device: "0000:01:00.0", State: "protected", Requests: 90, P99US: 3600, NativeP99US: 7900, NativeSource: "modelled",
					GainP99US: 4300, CostRatio: 0.03, CostNS: 2_000_000_000,
				}},
				User: "alice", State: "running", GPUShare: 0.25,
				Latency: &control.Latency{Source: control.SourceMarked, Requests: 3, Total: requests(4000), Wait: requests(150), Own: requests(3850)},
				SLO:     &control.SLO{TargetUS: 5000, Objective: 0.99, Met: 97, Missed: 3, Attainment: 0.97, BudgetLeft: -2},
			},
			{
				PID: 202, UID: 2000, Session: 2, Command: "train", State: "preempted", Preemptions: 7, LostNS: 250_000_000, Queues: []control.Queue{{
					Index: 0, Device: "0000:01:00.0", Busy: true, State: "suspended", Level: 2, RanNS: 1_000_000_000, SuspendedNS: 250_000_000,
					Preemptions: 7, PreemptedBy: []control.Cause{{Count: 1, Reason: "hand"}, {PID: 101, Count: 6, Reason: "process"}},
				}},
			},
		}},
		stats: control.Stats{
			UptimeNS: 5_000_000_000, HeartbeatAgeNS: 20_000_000, Sessions: 2, SessionsTotal: 3, Queues: 3, OpenFDs: 12, Goroutines: 31,
			Refused: map[string]uint64{"full": 2}, Wakes: 40, Doorbells: 30, Decisions: 25, Preemptions: 7, PreemptionsByLevel: [4]uint64{0, 0, 7, 0},
			Yields: 4, Grants: 1, Suspends: 7, Resumes: 6, TimesliceSets: 5, GateHolds: 0, DeviceErrors: 1,
			Targets: []control.TargetStats{{PID: 202, StuckSinceNS: 5}},
			PreemptTime: [4]control.Histogram{2: {
				Count: 3, SumUS: 95, Cumulative: []uint64{0, 0, 0, 1, 2, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3},
			}},
		},
	}
}

// requests is a histogram of three requests of the same duration.
func requests(us float64) control.Histogram {
	h := control.Histogram{Count: 3, P50US: us, P90US: us, P99US: us, MaxUS: us, SumUS: 3 * us}
	for _, bound := range control.HistogramBoundsUS() {
		n := uint64(0)
		if us <= bound {
			n = 3
		}
		h.Cumulative = append(h.Cumulative, n)
	}
	return h
}

func (w *world) note(format string, args ...any) {
	w.notes = append(w.notes, fmt.Sprintf(format, args...))
}

var errSilent = &control.Error{Kind: control.ErrUnavailable, Cause: "the engine does not answer"}

func (w *world) List(_ context.Context, c control.Caller) (control.List, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.silent {
		return control.List{}, errSilent
	}
	list := w.list
	list.Processes = slices.Clone(list.Processes)
	for i, p := range list.Processes {
		if p.Owner != (identity.User{}) { // else every caller may see it
			list.Processes[i] = p.For(c)
		}
	}
	return list, nil
}

func (w *world) Version(context.Context, control.Caller) (control.Version, error) {
	return control.Version{Version: "v9", Virtual: true}, nil
}

func (w *world) Stats(context.Context, control.Caller) (control.Stats, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.statsRead++
	return w.stats, nil
}

func (w *world) Parts() []control.Part {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.stats.Parts
}

func (w *world) Devices(context.Context, control.Caller) (control.Devices, error) {
	return control.Devices{Devices: []control.Device{{ID: "0000:01:00.0", Queues: 2, BusyNS: 3_000_000_000, Utilization: 0.5, MaxLevel: 3, Others: 1, Sensors: &control.Sensors{
		MemoryTotalBytes: new(uint64(80 << 30)), MemoryUsedBytes: new(uint64(78 << 30)), MemoryFreeBytes: new(uint64(2 << 30)), MemoryLow: true,
		PowerWatts: new(310.25), PowerLimitWatts: new(700.0), TemperatureCelsius: new(61.0), ClockHertz: new(uint64(1980e6)),
		Throttled: []string{"software_power_cap"}, ECCCorrected: new(uint64(7)), ECCUncorrected: new(uint64(0)), Xids: []control.Xid{{Code: 31, Count: 2}},
	}}}, Problems: []control.Problem{{Cause: "driver"}}}, nil
}

func (w *world) Hint(_ context.Context, c control.Caller, r control.HintRequest) (control.HintReply, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i, p := range w.list.Processes {
		if p.PID != r.PID {
			continue
		}
		if c.User.UID != 0 && c.User.UID != p.UID {
			return control.HintReply{}, &control.Error{Kind: control.ErrNotAllowed, Cause: "process belongs to another", Remedy: "use sudo"}
		}
		text := fmt.Sprintf("hint %d", r.PID)
		if r.Queue != nil {
			text += fmt.Sprintf(" queue %d", *r.Queue)
		}
		names := []string{"level", "in_flight", "batch", "utilization"}
		for i, v := range []*int{r.Level, r.InFlight, r.Batch, r.Utilization} {
			if v != nil {
				text += fmt.Sprintf(" %s=%d", names[i], *v)
			}
		}
		if r.Priority != nil {
			text += fmt.Sprintf(" priority=%d", *r.Priority)
		}
		if r.WindowActive != nil {
			text += fmt.Sprintf(" window=%v", *r.WindowActive)
		}
		w.note("%s", text)
		for k := range p.Queues {
			if q := &w.list.Processes[i].Queues[k]; r.Level != nil && !q.Stream {
				q.Level = *r.Level // a stream of its own has level 1
			}
		}
		return control.HintReply{}, nil
	}
	return control.HintReply{}, &control.Error{Kind: control.ErrNotFound, Cause: fmt.Sprintf("process %d is not known", r.PID)}
}

func (w *world) Policy(_ context.Context, c control.Caller, r control.PolicyRequest) (control.PolicyReply, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if r.Name != "" || r.QuantumUS != 0 {
		if !c.User.Root() {
			return control.PolicyReply{}, &control.Error{Kind: control.ErrNotAllowed, Cause: "only the daemon's owner may"}
		}
		w.note("policy %s %d", r.Name, r.QuantumUS)
		if r.Name != "" {
			w.policy = r.Name
		}
	}
	return control.PolicyReply{Name: w.policy, Available: policy.Names()}, nil
}

func (w *world) taken() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	all := strings.Join(w.notes, "; ")
	w.notes = nil
	return all
}

func as(uid int) Identify {
	return func(*http.Request) (control.Caller, error) { return control.Caller{User: identity.OnHost(uid)}, nil }
}

// TestXSchedRoutes compares all replies of XSched's routes with the golden file.
func TestXSchedRoutes(t *testing.T) {
	w := newWorld()
	root, user := Handler(w, as(0)), Handler(w, as(1000))
	var out strings.Builder
	ask := func(h http.Handler, who, method, target, body string) {
		r := httptest.NewRequest(method, target, strings.NewReader(body))
		a := httptest.NewRecorder()
		h.ServeHTTP(a, r)
		fmt.Fprintf(&out, "%s> %s %s %s\n%d %s", who, method, target, body, a.Code, a.Body)
		if did := w.taken(); did != "" {
			fmt.Fprintf(&out, "did: %s\n", did)
		}
		if kind := a.Header().Get("Content-Type"); kind != "application/json" {
			t.Errorf("%s %s: content type %q", method, target, kind)
		}
	}
	get := func(target string) { ask(root, "root", "GET", target, "") }
	post := func(target string) { ask(root, "root", "POST", target, "") }
	hint := func(body string) { ask(root, "root", "POST", "/hint", body) }

	get("/xqueues")
	get("/xqueue/10001")
	get("/xqueue/0x20000")
	get("/xqueue/30000")
	get("/xqueue/0")
	get("/xqueue/xyz")
	get("/xqueue/1ffffffffffffffff")

	post("/config/10000?level=2")
	post("/config/0x20000?threshold=32&batch_size=16")
	post("/config/20000?batch_size=1")
	post("/config/10000?level=0&threshold=-1&batch_size=-1") // XSched's xcli sends this for "no change"
	post("/config/10000?level=3&threshold=-1&batch_size=-1")
	post("/config/10001?level=3") // set, and not in force on this queue
	w.list.Mode, w.list.ModeLevel = "level", 2
	post("/config/10001?level=3") // the mode forces another one
	post("/config/10001?level=2") // the mode's, which this queue does not have
	w.list.Devices = []control.DeviceSetting{{Device: "0001:81:1f.7", Mode: "level", Level: 1}}
	post("/config/10001?level=3")
	w.list.Devices[0].Mode, w.list.Devices[0].Level = "live", 0
	post("/config/10001?level=3")
	w.list.Mode, w.list.ModeLevel, w.list.Devices = "live", 0, nil
	post("/config/10000")
	post("/config/10000?level=4")
	post("/config/10000?level=x")
	post("/config/10000?threshold=0")
	post("/config/10000?threshold=1x")
	post("/config/10000?batch_size=0")
	post("/config/10000?batch_size=99999999999999999999")
	post("/config/10000?threshold=8&batch_size=8")
	post("/config/10000?batch_size=16")
	post("/config/30000?level=1")
	post("/config/nothing?level=1")

	get("/policy")
	post("/policy?policy=100")
	get("/policy")
	post("/policy?policy=1")
	post("/policy?policy=0")
	post("/policy?policy=RR")
	get("/policy")
	post("/policy?policy=SLO")
	get("/policy")
	post("/policy?policy=hpf")
	post("/policy?policy=nonsense")
	post("/policy")

	hint(`{"hint_type":1,"handle":65536,"priority":10}`)
	hint(`{"hint_type":1,"handle":65536,"priority":-256}`)
	hint(`{"hint_type":1,"handle":65536,"priority":256}`)
	hint(`{"hint_type":1,"handle":65536}`)
	hint(`{"hint_type":1,"priority":1}`)
	hint(`{"hint_type":1,"handle":0,"priority":1}`)
	hint(`{"hint_type":1,"handle":"65536","priority":1}`)
	hint(`{"hint_type":1,"handle":7,"priority":1}`)
	hint(`{"hint_type":2,"pid":202,"handle":0,"utilization":75}`)
	hint(`{"hint_type":2,"pid":0,"handle":65537,"utilization":0}`)
	hint(`{"hint_type":2,"pid":303,"handle":0,"utilization":5}`)
	hint(`{"hint_type":2,"pid":202,"handle":0,"utilization":101}`)
	hint(`{"hint_type":2,"pid":202}`)
	hint(`{"hint_type":2,"utilization":5}`)
	hint(`{"hint_type":2,"pid":-3,"utilization":5}`)
	hint(`{"hint_type":3,"timeslice":5000}`)
	hint(`{"hint_type":3,"timeslice":0}`)
	hint(`{"hint_type":3,"timeslice":1}`)
	hint(`{"hint_type":3,"timeslice":10000001}`)
	hint(`{"hint_type":3}`)
	hint(`{"hint_type":7,"pid":101,"display":1}`)
	hint(`{"hint_type":7,"pid":202,"display":1}`)
	hint(`{"hint_type":7,"pid":202}`)
	hint(`{"hint_type":7,"display":1}`)
	hint(`{"hint_type":4,"handle":65536}`)
	hint(`{"hint_type":99}`)
	hint(`{"hint_type":1.5}`)
	hint(`{}`)
	hint(`null`)
	hint(`[]`)
	hint(`{`)
	hint(``)
	hint(`{"hint_type":3,"timeslice":5000,"more":"` + strings.Repeat("x", maxBodyBytes) + `"}`)

	ask(user, "uid 1000", "POST", "/hint", `{"hint_type":1,"handle":65536,"priority":1}`)
	ask(user, "uid 1000", "POST", "/hint", `{"hint_type":1,"handle":131072,"priority":1}`)
	ask(user, "uid 1000", "POST", "/policy?policy=1", "")
	ask(user, "uid 1000", "POST", "/config/20000?level=1", "")
	w.silent = true
	get("/xqueues")

	golden(t, "xsched.txt", cutLong(out.String()))
}

// cutLong keeps a huge request out of the golden file.
func cutLong(text string) string {
	var out strings.Builder
	for line := range strings.Lines(text) {
		if len(line) > 1000 {
			line = line[:60] + "...\n"
		}
		out.WriteString(line)
	}
	return out.String()
}

// TestXClient uses the real handler over a real connection.
func TestXClient(t *testing.T) {
	w := newWorld()
	server := httptest.NewServer(Handler(w, as(0)))
	defer server.Close()
	c := upstream.New("127.0.0.1", portOf(t, server.Listener.Addr().String()))
	defer c.Close()
	all, err := c.List(t.Context())
	if err != nil || len(all.Queues) != 3 || all.Queues[0].Handle != 0x10000 || !all.Queues[2].Suspended {
		t.Fatalf("List = %+v, %v", all, err)
	}
	if err := c.Config(t.Context(), 0x10000, 2, -1, -1); err != nil {
		t.Error(err)
	}
	if did := w.taken(); did != "hint 101 level=2" {
		t.Errorf("did %q", did)
	}
	if err := c.Config(t.Context(), 0x10000, 0, 8, 8); err == nil || !strings.Contains(err.Error(), "batch size must be less than threshold") {
		t.Errorf("Config = %v", err)
	}
	if now, err := c.Policy(t.Context()); now.Number != 1 || now.Text() != "HPF" || err != nil {
		t.Errorf("Policy = %+v, %v", now, err)
	}
	if err := c.SetPolicy(t.Context(), 102); err != nil {
		t.Error(err)
	}
	if now, err := c.Policy(t.Context()); now.Number != 7 || now.Text() != "EDF" || err != nil {
		t.Errorf("Policy = %+v, %v; want upstream's number of KEDF and the name EDF", now, err)
	}
	kind, pid := upstream.HintUtilization, 202
	if _, err := c.Hint(t.Context(), upstream.Hint{Type: &kind, PID: &pid, Utilization: &pid}); err == nil {
		t.Error("utilization 202 was taken")
	}
	if _, err := upstream.New("127.0.0.1", 1).List(t.Context()); err == nil || !strings.Contains(err.Error(), "xsched serve") {
		t.Errorf("nobody listens: %v", err)
	}
}
