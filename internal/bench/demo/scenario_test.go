// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"xsched/internal/bench"
	"xsched/internal/bench/benchtest"
	"xsched/internal/control"
)

// world is a fake daemon and device with the answers of a good run, so that
// the sequence of a scenario can be tested without either.
type world struct {
	t       *testing.T
	tenants []*bench.Tenant
	mode    control.ModeRequest
	modes   []string
	held    map[int]bool
	calls   uint64
	// spoil changes the device's answer.
	spoil func(map[int]bench.DeviceProcess)
	// deaf: suspensions are never confirmed.
	deaf bool
}

func (w *world) SetMode(_ context.Context, r control.ModeRequest) (control.ModeReply, error) {
	w.mode = r
	w.modes = append(w.modes, r.Mode)
	return control.ModeReply{Mode: r.Mode, Level: r.Level}, nil
}

func (w *world) List(context.Context) (control.List, error) {
	w.calls++
	var l control.List
	for i, tn := range w.tenants {
		p := control.Process{PID: tn.PID(), Held: w.held[tn.PID()]}
		p.Counters = control.Counters{HookedCalls: 100, Launches: 1e6}
		if w.mode.Level == 1 && i > 0 {
			p.Counters.GateWaits = w.calls
		}
		q := control.Queue{State: "running", SliceUS: 1}
		if p.Held && !w.deaf {
			q.State = "held"
		}
		p.Queues = []control.Queue{q}
		l.Processes = append(l.Processes, p)
	}
	return l, nil
}

func (w *world) Stats(context.Context) (control.Stats, error) {
	var s control.Stats
	switch w.mode.Mode {
	case "live":
		s.Suspends = w.calls
	case "level":
		s.GateHolds = w.calls
	}
	return s, nil
}

func (w *world) Suspend(_ context.Context, pid int) (control.ProcessReply, error) {
	w.held[pid] = true
	return control.ProcessReply{}, nil
}

func (w *world) Resume(_ context.Context, pid int) (control.ProcessReply, error) {
	delete(w.held, pid)
	return control.ProcessReply{}, nil
}

func (w *world) Attach(context.Context, int) (control.ProcessReply, error) {
	return control.ProcessReply{}, errors.New("not expected")
}

func (w *world) Processes(context.Context) (map[int]bench.DeviceProcess, error) {
	out := map[int]bench.DeviceProcess{}
	for _, tn := range w.tenants {
		out[tn.PID()] = bench.DeviceProcess{Kernels: 1e6, Preemptions: w.calls, Slice: time.Microsecond}
	}
	if w.spoil != nil {
		w.spoil(out)
	}
	return out, nil
}

// Record gives the last millisecond of the window to each tenant in turn: that
// is after a suspension, and the rest is idle.
func (w *world) Record(_ context.Context, win bench.Window) ([]bench.Segment, []bench.Wait, error) {
	var segs []bench.Segment
	from := win.To - int64(time.Millisecond)
	for _, tn := range w.tenants {
		segs = append(segs, bench.Segment{From: from, To: from + 1000, PID: tn.PID()})
		from += 1000
	}
	mid := (win.From + win.To) / 2
	return segs, []bench.Wait{{PID: w.tenants[0].PID(), Submitted: mid, Started: mid + 1000}}, nil
}

func runScenario(t *testing.T, lows int, w *world) (*Scenario, error) {
	t.Helper()
	w.t, w.held = t, map[int]bool{}
	p := plan{
		lows: lows, modes: AllModes(), rounds: 1, block: 300 * time.Millisecond, lowBlock: 200 * time.Millisecond,
		edge: bench.Trim{Head: 50 * time.Millisecond, Tail: 10 * time.Millisecond}, holdFor: 20 * time.Millisecond,
		seed: 1, work: bench.Workload{HighRate: 100, HighUS: 90, LowUS: 20000}, progress: func(string) {},
	}
	return scenario(t.Context(), p, w, w, func(i int) (*bench.Tenant, error) {
		tn, err := bench.StartTenant(bench.TenantName(i), []string{os.Args[0]}, bench.WithEnv(benchtest.TenantEnv+"=steady"))
		w.tenants = append(w.tenants, tn)
		return tn, err
	})
}

func TestScenarioFromStartToProof(t *testing.T) {
	w := &world{}
	s, err := runScenario(t, 2, w)
	if err != nil {
		t.Fatal(err)
	}
	if s.Name != "2 lows" || s.LowAloneRate < 0.2 || len(w.held) != 0 {
		t.Errorf("scenario %+v, still held %v", s, w.held)
	}
	for _, name := range AllModes() {
		m := s.Modes[name]
		if m == nil || m.High == nil || m.High.N < 5 || m.GPU == nil || (m.Low != nil) != (name != ModeAlone) {
			t.Fatalf("%s: %+v", name, m)
		}
		if m.Low != nil && len(m.Low.Rates) != 2 {
			t.Errorf("%s: %+v", name, m.Low)
		}
	}
	if w.modes[len(w.modes)-1] != "off" {
		t.Errorf("the last mode is %q", w.modes[len(w.modes)-1])
	}
	for _, tn := range w.tenants {
		select {
		case <-tn.Done:
		default:
			t.Errorf("%s still runs", tn.Name)
		}
	}
}

func TestScenarioThatProvesNothing(t *testing.T) {
	for name, c := range map[string]struct {
		world world
		want  string
	}{
		"lost kernel": {world{spoil: func(m map[int]bench.DeviceProcess) { each(m, func(p *bench.DeviceProcess) { p.Kernels-- }) }}, "launches equal kernels"},
		"slices differ": {world{spoil: func(m map[int]bench.DeviceProcess) {
			each(m, func(p *bench.DeviceProcess) { p.Slice = 2 * time.Millisecond })
		}}, "slices are in force"},
		"never held": {world{deaf: true}, "suspended means not running"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := c.world
			if _, err := runScenario(t, 1, &w); !errors.Is(err, bench.ErrProof) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want a failed proof of %q", err, c.want)
			}
			for _, tn := range w.tenants {
				<-tn.Done
			}
		})
	}
}

func each(m map[int]bench.DeviceProcess, f func(*bench.DeviceProcess)) {
	for pid, p := range m {
		f(&p)
		m[pid] = p
	}
}
