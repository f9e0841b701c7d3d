// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"bufio"
	"bytes"
	"cmp"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"xsched/internal/model"
)

var update = flag.Bool("update", false, "rewrite the expected lines of testdata/*.txt")

// script runs text commands against an engine. Lines that begin with ">" are its
// answers to the command above; -update rewrites them.
//
//	config quantum=50ms bound=2s hold=500us     before anything else
//	queue NAME [level=N] [slices=no] [device=N] [pid=N] [HINT=VALUE]...
//	at TIME busy|idle|remove|hold|release NAME...
//	at TIME begin|end NAME...                   of a request
//	at TIME fed|waited NAME...                  idle, after submitting or waiting until then
//	at TIME paused NAME...                      idle, and nobody waited
//	at TIME launched|waits NAME N               launches so far; a thread waits for them
//	at TIME hint NAME [HINT=VALUE]...
//	at TIME prio NAME N | policy NAME | mode MODE [LEVEL] | unmanaged DEVICE
//	slo                                         status of the latency targets
//
// Hints are prio, util, timeslice, deadline, k, laxity, lax, critical, window, nice, slo, gang, perqueue.
//
//	decide                                      at the time of the last event
//	until TIME                                  decide at every wake-up until then
//	list                                        state of all queues
type script struct {
	e     *Engine
	cfg   Config
	names map[string]model.Queue
	now   model.Time
	wake  model.Time
	out   *bytes.Buffer
}

func TestScripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scripts: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			got, err := runScript(want)
			if err != nil {
				t.Fatal(err)
			}
			if *update {
				if err := os.WriteFile(file, got, 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if !bytes.Equal(got, want) {
				t.Errorf("answers differ (go test -update rewrites them); got:\n%s", got)
			}
		})
	}
}

func runScript(text []byte) ([]byte, error) {
	s := &script{cfg: DefaultConfig(), names: map[string]model.Queue{}, now: simStart, wake: model.Never, out: &bytes.Buffer{}}
	lines := bufio.NewScanner(bytes.NewReader(text))
	for n := 1; lines.Scan(); n++ {
		line := lines.Text()
		if strings.HasPrefix(line, ">") {
			continue
		}
		fmt.Fprintln(s.out, line)
		words := strings.Fields(line)
		if len(words) == 0 || strings.HasPrefix(line, "#") {
			continue
		}
		if err := s.do(words); err != nil {
			return nil, fmt.Errorf("line %d: %q: %w", n, line, err)
		}
	}
	return s.out.Bytes(), lines.Err()
}

func (s *script) do(words []string) error {
	if words[0] == "config" {
		return s.config(words[1:])
	}
	if s.e == nil {
		e, err := New(s.cfg)
		if err != nil {
			return err
		}
		s.e = e
	}
	switch words[0] {
	case "queue":
		return s.queue(words[1], words[2:])
	case "at":
		d, err := time.ParseDuration(words[1])
		if err != nil {
			return err
		}
		s.now = simStart.Add(d)
		return s.event(words[2], words[3:])
	case "decide":
		s.decide()
		return nil
	case "until":
		d, err := time.ParseDuration(words[1])
		if err != nil {
			return err
		}
		for end := simStart.Add(d); s.wake <= end; {
			if s.wake <= s.now {
				return fmt.Errorf("a wake-up at %v after one at %v", s.wake.Sub(simStart), s.now.Sub(simStart))
			}
			s.now = s.wake
			s.decide()
		}
		return nil
	case "slo":
		for _, st := range s.e.SLOs() {
			fmt.Fprintf(s.out, "> pid %d %v: %s, %d requests, estimate %v, room %s; %s\n",
				st.PID, st.Target, st.State, st.Requests, st.Estimate.Round(time.Microsecond), st.Room, st.Reason)
		}
		return nil
	case "list":
		for _, q := range s.e.Snapshot(s.now) {
			fmt.Fprintf(s.out, "> %s\n", s.state(q))
		}
		return nil
	}
	return fmt.Errorf("unknown command")
}

func (s *script) config(words []string) error {
	for _, w := range words {
		key, value, _ := strings.Cut(w, "=")
		d, err := time.ParseDuration(value)
		if err != nil {
			return err
		}
		switch key {
		case "quantum":
			s.cfg.Quantum = d
		case "bound":
			s.cfg.StarvationBound = d
		case "hold":
			s.cfg.Hold = d
		default:
			return fmt.Errorf("unknown key %s", key)
		}
	}
	return nil
}

func (s *script) queue(name string, words []string) error {
	n := len(s.names) + 1
	q := model.Queue{ID: model.QueueID{Session: model.SessionID(n)}, PID: n, Level: model.LevelInterrupt, Slices: true}
	for _, w := range words {
		key, value, _ := strings.Cut(w, "=")
		i, err := strconv.Atoi(value)
		switch key {
		case "slices":
			q.Slices, err = value != "no", nil
		case "level":
			q.Level = model.Level(i)
		case "device":
			q.Device = model.DeviceID(i)
		case "pid":
			q.PID = i
		default:
			err = setHint(&q.Hint, w)
		}
		if err != nil {
			return err
		}
	}
	s.names[name] = q
	s.e.AddQueue(s.now, q)
	return nil
}

// setHint applies KEY=VALUE.
func setHint(h *model.Hint, word string) error {
	key, value, _ := strings.Cut(word, "=")
	n, notNumber := strconv.Atoi(value)
	d, notTime := time.ParseDuration(value)
	times := map[string]*time.Duration{
		"timeslice": &h.Timeslice, "deadline": &h.Deadline, "laxity": &h.Laxity, "slo": &h.SLO.Latency,
	}
	if at := times[key]; at != nil {
		*at = d
		return notTime
	}
	switch key {
	case "prio":
		h.Priority = model.Priority(n)
	case "util":
		h.Utilization = n
	case "k":
		h.K = n
	case "lax":
		h.LaxPriority = model.Priority(n)
	case "critical":
		h.CriticalPriority = model.Priority(n)
	case "nice":
		h.Nice = n
	case "window":
		h.WindowActive, notNumber = true, nil
	case "gang":
		h.Gang, notNumber = value, nil
	case "perqueue":
		h.PerQueue, notNumber = true, nil
	default:
		return fmt.Errorf("unknown hint %s", key)
	}
	return cmp.Or(notNumber, h.Check())
}

func (s *script) event(what string, args []string) error {
	switch what {
	case "policy":
		return s.e.SetPolicy(args[0])
	case "mode":
		level := 0
		if len(args) > 1 {
			level, _ = strconv.Atoi(args[1])
		}
		return s.e.SetMode(model.Mode(args[0]), model.Level(level))
	case "hint":
		var h model.Hint
		for _, w := range args[1:] {
			if err := setHint(&h, w); err != nil {
				return err
			}
		}
		s.e.SetHint(s.now, s.names[args[0]].PID, h)
		return nil
	case "unmanaged":
		n, err := strconv.Atoi(args[0])
		s.e.SetUnmanaged(s.now, model.DeviceID(n), true)
		return err
	case "launched", "waits":
		n, err := strconv.ParseUint(args[1], 10, 64)
		s.e.SetProgress(s.now, s.names[args[0]].ID, model.Progress{Launches: n, Waits: what == "waits"})
		return err
	case "prio":
		p, err := strconv.Atoi(args[1])
		s.e.SetHint(s.now, s.names[args[0]].PID, model.Hint{Priority: model.Priority(p)})
		return err
	}
	for _, name := range args {
		q, known := s.names[name]
		if !known {
			return fmt.Errorf("no queue %s", name)
		}
		switch what {
		case "busy", "idle":
			s.e.SetBusy(s.now, q.ID, what == "busy")
		case "fed":
			s.e.SetIdle(s.now, q.ID, time.Hour)
		case "waited":
			s.e.SetIdle(s.now, q.ID, 1)
		case "paused":
			s.e.SetIdle(s.now, q.ID, model.NotWaited)
		case "begin", "end":
			s.e.MarkRequest(s.now, q.PID, what == "begin")
		case "hold", "release":
			s.e.SetHeld(s.now, q.PID, what == "hold")
		case "remove":
			s.e.RemoveQueue(s.now, q.ID)
		default:
			return fmt.Errorf("unknown event")
		}
	}
	return nil
}

func (s *script) decide() {
	changes, wake := s.e.Decide(s.now)
	s.wake = wake
	at := s.now.Sub(simStart)
	byName := slices.Clone(changes)
	slices.SortFunc(byName, func(a, b model.Desired) int { return cmp.Compare(s.name(a.Queue), s.name(b.Queue)) })
	for _, c := range byName {
		fmt.Fprintf(s.out, "> %v %s %s\n", at, s.name(c.Queue), desiredText(c))
	}
	if wake == model.Never {
		fmt.Fprintf(s.out, "> %v wake never\n", at)
	} else {
		fmt.Fprintf(s.out, "> %v wake %v\n", at, wake.Sub(simStart))
	}
}

func (s *script) name(id model.QueueID) string {
	for name, q := range s.names {
		if q.ID == id {
			return name
		}
	}
	return "?"
}

func desiredText(d model.Desired) string {
	text := "run"
	if d.Suspend != 0 {
		text = "stop " + d.Suspend.String()
	}
	if d.Slice != 0 {
		text += " slice=" + d.Slice.String()
	}
	if d.InFlight != 0 {
		text += fmt.Sprintf(" limit=%d/%d", d.InFlight, d.Batch)
	}
	return text
}

func (s *script) state(q QueueState) string {
	text := s.name(q.Queue.ID) + " " + desiredText(q.Desired)
	if q.Queue.Ready() {
		text += " ready"
	}
	if q.Waiting {
		text += fmt.Sprintf(" waiting=%v", s.now.Sub(q.Queue.WaitSince))
	}
	stops := uint64(0)
	for _, n := range q.Preemptions {
		stops += n
	}
	if stops+q.Yields > 0 {
		text += fmt.Sprintf(" stops=%d yields=%d by=%d", stops, q.Yields, q.PreemptedBy)
	}
	if q.Caused > 0 {
		text += fmt.Sprintf(" caused=%d", q.Caused)
	}
	return text
}
