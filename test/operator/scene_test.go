// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"context"
	"fmt"
	"math"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"xsched/internal/api"
	"xsched/internal/control"
	"xsched/internal/dashboard"
	"xsched/internal/top/toptest"
)

// scene is a daemon with fixed or with very many tenants, for pictures and for measuring the viewer. The
// server and the page are the real ones.
type scene struct {
	control.Control // nil: a method that is not overridden panics

	crowd int       // tenants that change all the time; 0: the fixed scene
	slow  int       // PID whose requests take 5,000 times as long as those of the service; 0: none
	never int       // PID whose only busy periods last 1,000 s; 0: none
	begun time.Time // of the crowd
	reads atomic.Int64
}

// serveScene serves a scene at a free port of the loopback.
func serveScene(t testing.TB, s *scene) string {
	t.Helper()
	s.begun = time.Now()
	server, err := api.ListenHTTP(api.HTTPOptions{Addr: "127.0.0.1:0", Pages: dashboard.Handler()})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- server.Serve(ctx, s) }()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	return server.Addr()
}

func (s *scene) now() int64 {
	if s.crowd > 0 {
		return time.Now().UnixNano()
	}
	return toptest.Scene(0).TimeNS
}

// Version is the first call of a reading of the page.
func (s *scene) Version(context.Context, control.Caller) (control.Version, error) {
	s.reads.Add(1)
	return toptest.Scene(0).Daemon, nil
}

func (s *scene) Devices(context.Context, control.Caller) (control.Devices, error) {
	return control.Devices{Devices: toptest.Scene(0).Devices}, nil
}

func (s *scene) Policy(context.Context, control.Caller, control.PolicyRequest) (control.PolicyReply, error) {
	return toptest.Policies(), nil
}

func (s *scene) Mode(context.Context, control.Caller, control.ModeRequest) (control.ModeReply, error) {
	return control.ModeReply{Mode: "live", Available: []string{"off", "timeslice", "suspend", "level", "live"}}, nil
}

// List has the fixed tenants, or a crowd in which every tenant changes twice a second.
func (s *scene) List(context.Context, control.Caller) (control.List, error) {
	list := toptest.Scene(0).List
	list.Processes = slices.Clone(list.Processes)
	for i := range list.Processes {
		if l := list.Processes[i].Latency; l.Certain() {
			l.Total, l.Wait = spread(l.Total.P50US, l.Total.P99US, l.Requests), spread(l.Wait.P99US/8, l.Wait.P99US, l.Requests)
		}
	}
	if s.crowd == 0 {
		return list, nil
	}
	states := []string{control.StateRunning, control.StatePreempted, control.StateWaiting, control.StateIdle}
	step := int(time.Since(s.begun) / (500 * time.Millisecond))
	pattern := list.Processes
	list.Processes = make([]control.Process, s.crowd)
	for i := range list.Processes {
		p := pattern[i%3]
		p.PID, p.Session = firstPID+i, uint64(i+1)
		p.Command = fmt.Sprintf("python job-%03d.py --epochs 90", i)
		p.State = states[(i+step)%len(states)]
		p.Priority = int32(i % 100)
		p.GPUShare = float64((i*7+step*13)%100) / 100
		p.Preemptions += uint64(step * i)
		list.Processes[i] = p
	}
	return list, nil
}

const firstPID = 20_000

func (s *scene) Stats(context.Context, control.Caller) (control.Stats, error) {
	wait := spread(4000, 31_000, 18_294)
	if s.slow > 0 {
		wait = spread(300, 9e5, 18_294) // a bar for nearly each bound
	}
	return control.Stats{
		QueueWait:   wait,
		PreemptTime: [4]control.Histogram{{}, {}, spread(240, 900, 90), spread(160, 640, 18_204)},
	}, nil
}

// spread is a histogram with about these quantiles.
func spread(p50, p99 float64, n uint64) control.Histogram {
	h := control.Histogram{Count: n, Recent: n, P50US: p50, P90US: math.Sqrt(p50 * p99), P99US: p99, MaxUS: p99 * 1.3, SumUS: p50 * float64(n)}
	if p50 <= 0 || n == 0 {
		return control.Histogram{Cumulative: make([]uint64, len(control.HistogramBoundsUS()))}
	}
	width := math.Log(p99/p50) / 2.33
	for _, bound := range control.HistogramBoundsUS() {
		part := 0.5 * (1 + math.Erf(math.Log(bound/p50)/width/math.Sqrt2))
		if bound > h.MaxUS {
			part = 1
		}
		h.Cumulative = append(h.Cumulative, uint64(part*float64(n)))
	}
	return h
}

// History has, in the fixed scene, a service that preempts a job every 50 ms. A crowd has 1,000 changes
// a second.
func (s *scene) History(_ context.Context, _ control.Caller, r control.HistoryRequest) (control.History, error) {
	seconds := r.Seconds
	if seconds == 0 {
		seconds = control.SpanSeconds
	}
	to := s.now()
	points := min(seconds, 60)
	out := control.History{FromNS: to - int64(seconds)*1e9, ToNS: to, StepNS: int64(seconds) * 1e9 / int64(points)}
	from := to - int64(min(seconds, control.SpanSeconds))*1e9
	list, err := s.List(context.Background(), control.Caller{})
	if err != nil {
		return out, err
	}
	for i, device := range toptest.Scene(0).Devices {
		d := control.DeviceHistory{Device: device.ID, SpansFromNS: to - control.SpanSeconds*1e9, Spans: []control.Span{}, Series: []control.Series{}}
		switch {
		case s.crowd > 0:
			d.Spans = crowdSpans(s.crowd, i, from, to)
		case i == 0:
			d.Spans = storySpans(from, to)
		default:
			for at := from; at < to; at += 1e9 {
				d.Spans = append(d.Spans, control.Span{PID: 6001, State: control.SpanRun, FromNS: at, ToNS: at + 41e7})
			}
		}
		for n, p := range list.Processes {
			if len(d.Series) == shownSeries {
				break
			}
			if s.crowd == 0 && (p.GPUShare == 0 || (n == 5) != (i == 1)) || s.crowd > 0 && n%2 != i {
				continue
			}
			one := series(&p, points, n)
			for k := range one.P99US {
				switch p.PID {
				case s.slow:
					one.P99US[k] = 20e6
				case s.never:
					one.P99US[k] = 1e9
				}
			}
			d.Series = append(d.Series, one)
		}
		out.Devices = append(out.Devices, d)
	}
	return out, nil
}

func series(p *control.Process, points, phase int) control.Series {
	s := control.Series{PID: p.PID, Name: control.TenantName(p.Command)}
	for i := range points {
		wave := 1 + 0.25*math.Sin(float64(i)/5+float64(phase)*2)
		s.Share = append(s.Share, float32(p.GPUShare*wave))
		p99 := 0.0
		if p.Latency.Certain() {
			p99 = p.Latency.Total.P99US * wave
		}
		s.P99US = append(s.P99US, float32(p99))
		preempted := uint32(0)
		if p.Preemptions > 1 {
			preempted = uint32(20 * wave)
		}
		s.Preemptions = append(s.Preemptions, preempted)
	}
	return s
}

func storySpans(from, to int64) []control.Span {
	const period, service = 50e6, 14e6
	out := []control.Span{}
	for at := from; at < to; at += period {
		busy := at + service + (at/period%5)*2e6
		out = append(out,
			control.Span{PID: 4711, Name: "serve.py", State: control.SpanRun, FromNS: at, ToNS: busy},
			control.Span{PID: 4890, Name: "train.py", State: control.SpanPreempted, FromNS: at, ToNS: busy},
			control.Span{PID: 4890, Name: "train.py", State: control.SpanRun, FromNS: busy, ToNS: at + period})
		if at/period%40 < 12 {
			out = append(out, control.Span{PID: 5001, Name: "render", State: control.SpanWait, FromNS: at, ToNS: at + period/2},
				control.Span{PID: 5001, Name: "render", State: control.SpanRun, FromNS: at + period/2, ToNS: at + period})
		}
	}
	return out
}

// Bounds of a daemon's reply (internal/history).
const (
	shownSpans  = 8192
	shownSeries = 128
)

// crowdSpans has 500 spans a second on each of two GPUs, on a fixed grid, so that replies agree. As the
// daemon does, it makes them longer if they are too many.
func crowdSpans(crowd, device int, from, to int64) []control.Span {
	length := int64(2e6)
	for (to-from)/length > shownSpans {
		length *= 2
	}
	states := []string{control.SpanRun, control.SpanPreempted, control.SpanRun, control.SpanWait}
	out := []control.Span{}
	for n := from / length; n < to/length; n++ {
		pid := firstPID + (int(n%int64(crowd))*2+device)%crowd
		out = append(out, control.Span{PID: pid, State: states[n/7%4], FromNS: n * length, ToNS: (n + 1) * length})
	}
	return out
}

// Journal has a story, or a crowd's newest entries: 100 a second.
func (s *scene) Journal(_ context.Context, _ control.Caller, r control.JournalRequest) (control.Journal, error) {
	now := s.now()
	var out control.Journal
	last := uint64(24)
	if s.crowd > 0 {
		last = uint64(time.Since(s.begun) / (10 * time.Millisecond))
	}
	first := max(r.Since, last-min(last, 200))
	for seq := first; seq < last; seq++ {
		e := control.JournalEntry{Seq: seq, TimeNS: now - int64(last-seq)*1_300e6, Kind: control.JournalPreemption, PID: 4890, ByPID: 4711, Text: fmt.Sprintf("serve.py preempted train.py for %d.%d ms", 2+seq%3, seq%10)}
		switch seq {
		case 3:
			e.Kind, e.Text = control.JournalJoined, "render of carla joined"
		case 11:
			e.Kind, e.Text = control.JournalChange, "bo changed the priority of train.py from 0 to -10"
		case 17:
			e.Kind, e.Text = control.JournalChange, "bo suspended sweep.py"
		}
		out.Entries = append(out.Entries, e)
	}
	out.Next = last
	return out, nil
}
