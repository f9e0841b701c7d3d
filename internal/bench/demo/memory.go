// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"
	"time"

	"xsched/internal/bench"
	"xsched/internal/control"
	"xsched/internal/model"
	"xsched/internal/report"
)

// The memory scene: a service and a job that don't fit into the GPU's memory together.
const (
	memoryScene    = "memory"
	memoryCapacity = 256 << 20
	memoryHeld     = 160 << 20 // by each of the two
	memoryRate     = 50        // requests a second
	memoryTime     = time.Second
	memoryLimit    = 20 * time.Second // of each wait
)

const outOfMemory = "out of memory"

// allocationFailed is what a tenant says before it ends.
var allocationFailed = regexp.MustCompile(`MemAlloc.*: 2$`)

// Memory is the result of the memory scene.
type Memory struct {
	CapacityBytes model.Bytes     `json:"capacity_bytes"`
	ServiceBytes  model.Bytes     `json:"service_bytes"`
	JobBytes      model.Bytes     `json:"job_bytes"`
	Native        string          `json:"native"`         // how the service's start beside the job ends without XSched
	StartAloneMS  float64         `json:"start_alone_ms"` // of the service, until it has its memory
	StartMS       float64         `json:"start_ms"`       // the same, beside the job
	OutMoves      uint64          `json:"out_moves"`      // of the job's memory
	OutBytes      model.Bytes     `json:"out_bytes"`
	Back          control.Move    `json:"back"`
	High          *report.Latency `json:"high"`      // of the service's requests
	ReturnMS      float64         `json:"return_ms"` // from the end of the service to the job's next iteration
	Checks        []bench.Check   `json:"checks"`
}

// memoryEvidence is the input of the scene's proof.
type memoryEvidence struct {
	native    error       // of the service's start without movable memory
	left      model.Bytes // of the job, on the device while the service runs, by the device's own account
	out, back uint64      // moves of the job
	waited    int         // iterations of the job while its memory was away
	requests  int
	results   map[string]error // by program
}

func (e *memoryEvidence) checks() []bench.Check {
	check := func(name, ok string, failures ...string) bench.Check {
		if len(failures) > 0 {
			return bench.Check{Name: name, Detail: strings.Join(failures, "; ")}
		}
		return bench.Check{Name: name, OK: true, Detail: ok}
	}
	var native, moved, waited, wrong []string
	if e.native == nil || !allocationFailed.MatchString(e.native.Error()) {
		native = append(native, fmt.Sprintf("the service's start ended with: %v", e.native))
	}
	if most := model.Bytes(memoryCapacity - memoryHeld); e.left > most || e.left == 0 {
		moved = append(moved, fmt.Sprintf("%v of the job were on the device beside the service, at most %v fit", e.left, most))
	}
	if e.out == 0 || e.back == 0 {
		moved = append(moved, fmt.Sprintf("%d moves out, %d back", e.out, e.back))
	}
	if e.waited > 0 || e.requests == 0 {
		waited = append(waited, fmt.Sprintf("%d iterations of the job, %d requests of the service", e.waited, e.requests))
	}
	for name, err := range e.results {
		if err != nil {
			wrong = append(wrong, fmt.Sprintf("%s: %v", name, err))
		}
	}
	return []bench.Check{
		check("natively "+outOfMemory, fmt.Sprint(e.native), native...),
		check("memory left and returned", fmt.Sprintf("%d moves out, %d back; %v of the job stayed, by the device's account", e.out, e.back, e.left), moved...),
		check("nothing ran without memory", fmt.Sprintf("no iteration of the job during %d requests of the service", e.requests), waited...),
		check("memory and results are right", "each program compared all of its memory", wrong...),
	}
}

// memoryRun is the scene while it runs.
type memoryRun struct {
	*bench.Rig
	Memory
	memoryEvidence
	running []*bench.Tenant
}

// runMemory shows what happens natively, and with movable memory.
func runMemory(ctx context.Context, o *CompareOptions) (*Memory, error) {
	r, err := bench.OpenPrivate(ctx, o.Exe, bench.Private{Platform: o.Platform, Fault: o.Fault, Memory: memoryCapacity})
	if err != nil {
		return nil, err
	}
	defer r.Close()
	m := &memoryRun{Rig: r, Memory: Memory{CapacityBytes: memoryCapacity, ServiceBytes: memoryHeld, JobBytes: memoryHeld}}
	m.results = map[string]error{}
	defer func() {
		for _, t := range m.running {
			t.Kill()
		}
	}()
	if err := m.natively(ctx); err != nil {
		return nil, fmt.Errorf("memory, native: %w", err)
	}
	if err := m.movable(ctx); err != nil {
		return nil, fmt.Errorf("memory, with XSched: %w", err)
	}
	m.Memory.Checks = m.checks()
	return &m.Memory, bench.Failure(memoryScene, m.Memory.Checks)
}

// start starts one of the two programs, and returns how long it took until it had its memory.
func (m *memoryRun) start(ctx context.Context, name string, options ...string) (*bench.Tenant, float64, error) {
	p := bench.Program{Name: name, KernelUS: 1000, Depth: 1, Run: options, Args: []string{"--memory", fmt.Sprint(memoryHeld >> 20)}}
	if name == "service" {
		p.Priority = 10
	}
	begun := time.Now()
	t, err := m.Start(p)
	if err != nil {
		return nil, 0, err
	}
	m.running = append(m.running, t)
	err = t.Await(ctx, "R", memoryLimit)
	return t, milliseconds(time.Since(begun)), err
}

// end lets a program compare its memory, and end.
func (m *memoryRun) end(t *bench.Tenant) {
	err := t.Quit(memoryLimit)
	if err == nil && !t.Final().OK {
		err = errors.New("wrong result")
	}
	m.results[t.Name] = errors.Join(m.results[t.Name], err)
}

func (m *memoryRun) natively(ctx context.Context) error {
	if _, err := m.Daemon.SetMode(ctx, modeOf(ModeNative)); err != nil {
		return err
	}
	service, took, err := m.start(ctx, "service")
	if err != nil {
		return err
	}
	m.StartAloneMS = took
	m.end(service)
	job, _, err := m.start(ctx, "job")
	if err != nil {
		return err
	}
	_, _, m.native = m.start(ctx, "service")
	m.Native = outOfMemory
	m.end(job)
	return ctx.Err()
}

func (m *memoryRun) movable(ctx context.Context) error {
	if _, err := m.Daemon.SetMode(ctx, modeOf(ModeLv3)); err != nil {
		return err
	}
	job, _, err := m.start(ctx, "job", "--movable")
	if err != nil {
		return err
	}
	if err := job.Tell("loop"); err != nil {
		return err
	}
	// Host memory is pinned ahead, as soon as the GPU is more than half full.
	if _, err := m.until(ctx, job, func(now control.Memory) bool {
		return now.PinnedBytes >= 2*memoryHeld-memoryCapacity && len(job.Samples()) > 0
	}); err != nil {
		return err
	}
	service, took, err := m.start(ctx, "service", "--movable")
	if err != nil {
		return err
	}
	m.StartMS = took
	away, err := m.until(ctx, job, func(now control.Memory) bool { return now.AwayBytes > 0 && now.Residency == control.MemoryAway })
	if err != nil {
		return err
	}
	m.OutMoves, m.OutBytes = away.MovesOut, model.Bytes(away.AwayBytes)
	if err := m.serve(ctx, job, service); err != nil {
		return err
	}
	back, err := m.until(ctx, job, func(now control.Memory) bool {
		return now.AwayBytes == 0 && now.Residency == control.MemoryResident && !now.Move.Active
	})
	if err != nil {
		return err
	}
	m.Back, m.out, m.back = *back.Move, back.MovesOut, back.MovesBack
	m.end(job)
	return ctx.Err()
}

// serve lets the service answer requests while the job's memory is away, and end. Then the job goes on.
func (m *memoryRun) serve(ctx context.Context, job, service *bench.Tenant) error {
	stats, err := m.Device.(bench.VGPU).Client.Stats()
	if err != nil {
		return err
	}
	m.left = model.Bytes(stats.MemoryOf(job.PID(), 0))
	w := bench.Window{From: bench.Monotonic()}
	if err := service.Tell(fmt.Sprintf("rate %d", memoryRate)); err != nil {
		return err
	}
	if err := bench.Sleep(ctx, memoryTime); err != nil {
		return err
	}
	if err := service.Pause(ctx); err != nil {
		return err
	}
	w.To = bench.Monotonic()
	latencies := bench.Latencies(service.Samples(), []bench.Window{w})
	m.High, m.requests = report.Summarize(latencies), len(latencies)
	m.waited = len(bench.Latencies(job.Samples(), []bench.Window{w}))
	m.end(service)
	ended := bench.Monotonic()
	ok, err := bench.Until(ctx, memoryLimit, time.Millisecond, func() (bool, error) {
		for _, s := range job.Samples() {
			if s.End > ended {
				m.ReturnMS = milliseconds(time.Duration(s.End - ended))
				return true, nil
			}
		}
		return false, nil
	})
	if err == nil && !ok {
		err = fmt.Errorf("the job does not go on within %v", memoryLimit)
	}
	return err
}

// until waits until the memory of a program is as asked.
func (m *memoryRun) until(ctx context.Context, t *bench.Tenant, as func(control.Memory) bool) (now control.Memory, err error) {
	ok, err := bench.Until(ctx, memoryLimit, 5*time.Millisecond, func() (bool, error) {
		list, err := m.Daemon.List(ctx)
		if err != nil {
			return false, fmt.Errorf("read the daemon's list: %w", err)
		}
		for _, p := range list.Processes {
			if p.PID == t.PID() && len(p.Memory) > 0 {
				now = p.Memory[0]
				return as(now), nil
			}
		}
		return false, nil
	})
	if err == nil && !ok {
		err = fmt.Errorf("%w (%s): the memory of %s is %s, %v of %v away, %v pinned", bench.ErrProof, memoryScene, t.Name,
			now.Residency, model.Bytes(now.AwayBytes), model.Bytes(now.UsedBytes), model.Bytes(now.PinnedBytes))
	}
	return now, err
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// lines is the scene in sentences.
func (m *Memory) lines() []string {
	return []string{
		fmt.Sprintf("The GPU has %v. A service and a job hold %v each.", m.CapacityBytes, m.ServiceBytes),
		"Native: the service can't start (" + m.Native + ").",
		fmt.Sprintf("XSched: the service has its memory %.0f ms after its start (alone %.0f ms). %v of the job left in %d moves.",
			m.StartMS, m.StartAloneMS, m.OutBytes, m.OutMoves),
		fmt.Sprintf("The service's P99 is %.2f ms over %d requests. The job goes on %.0f ms after the service's end.", m.High.P99, m.High.N, m.ReturnMS),
	}
}

func (m *Memory) writeText(w io.Writer) {
	fmt.Fprintf(w, "\n%s\n", memoryScene)
	for _, line := range m.lines() {
		fmt.Fprintf(w, "  - %s\n", line)
	}
	names := make([]string, 0, len(m.Checks))
	for _, c := range m.Checks {
		names = append(names, c.Name)
	}
	fmt.Fprintf(w, "  proof: %s\n", strings.Join(names, ", "))
}

func (m *Memory) addTo(p *report.Page) {
	p.Add(report.Block{
		Section: "Programs that don't fit into the GPU's memory together",
		Lead:    fmt.Sprintf("The service starts although the job holds its memory: after %.0f ms, alone %.0f ms.", m.StartMS, m.StartAloneMS),
		Cards: []report.Card{
			{Value: m.Native, Name: "native"},
			{Value: m.OutBytes.String(), Name: "of the job left for the service"},
			{Value: fmt.Sprintf("%.0f ms", m.ReturnMS), Name: "until the job went on afterwards"},
		},
		List: m.lines(),
	})
	addProof(p, m.Checks)
}
