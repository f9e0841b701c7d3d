// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"xsched/internal/control"
	"xsched/test/proc"
)

// arm is one of the three kinds of blocks, with all blocks of an attack.
type arm struct {
	p99, job, second samples
	cpu              float64 // of the daemon, percent of a core, the highest of a block
	attacker         float64 // CPU time of the attacker, likewise
	rss              int64   // the highest
	files, threads   int
	written, logged  float64 // bytes per second, the highest of a block
	dropped, slices  int     // slices that the host spoiled, of all
	decisions        float64 // per second, of the last block that knows it
	held             int     // iterations of the program that is suspended by hand
	probes           map[string]time.Duration
	failed           []string // probes
}

// measurement is the state of one attack.
type measurement struct {
	w    *world
	a    attack
	s    settings
	row  Row
	arms [3]arm

	files    int // of the daemon before
	sessions int
	devices  int
}

const (
	alone = iota
	attacked
	controlled
)

// measure runs one attack.
func (w *world) measure(a attack, s settings, b Bounds) (Row, error) {
	m := &measurement{w: w, a: a, s: s, row: Row{Attack: a.name, ID: a.id, Platform: w.platform.Name, What: a.what}}
	if a.block > 0 {
		m.s.block = a.block
	}
	if a.rounds > 0 {
		m.s.rounds = min(s.rounds, a.rounds)
	}
	if a.before != nil {
		a.before(w)
	}
	if err := w.settle(); err != nil {
		return m.row, err
	}
	if err := m.baseline(); err != nil {
		return m.row, err
	}
	for round := range m.s.rounds {
		m.block(alone, nil)
		if err := m.attack(round == m.s.rounds-1); err != nil {
			return m.row, err
		}
		if m.row.Skipped != "" {
			return m.row, nil
		}
		if m.s.short && a.control == "" {
			continue
		}
		if err := m.control(); err != nil {
			return m.row, err
		}
	}
	m.row.fill(&m.arms)
	m.row.judge(b, a)
	return m.row, nil
}

// baseline records what recovery must reach.
func (m *measurement) baseline() error {
	stats, err := ask(5*time.Second, m.w.client.Stats)
	if err != nil {
		return err
	}
	devices, err := ask(5*time.Second, m.w.client.Devices)
	if err != nil {
		return err
	}
	u, err := usageOf(m.w.daemon.pid())
	m.files, m.sessions, m.devices = u.files, stats.Sessions, len(devices.Devices)
	return err
}

// actor is a running attacker, or its control.
type actor struct {
	cmd   *exec.Cmd
	lines chan string
	gone  chan struct{}
	log   proc.Tail
}

// begin starts an actor and waits until it is ready, for a limited time.
func (m *measurement) begin(cmd *exec.Cmd, limit time.Duration) (*actor, error) {
	a := &actor{cmd: cmd, lines: make(chan string, 64), gone: make(chan struct{})}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	cmd.Stderr = &a.log
	if err := proc.Start(cmd); err != nil {
		return nil, err
	}
	go func() {
		for scan := bufio.NewScanner(out); scan.Scan(); {
			select {
			case a.lines <- scan.Text():
			default:
			}
		}
		_ = cmd.Wait()
		close(a.gone)
	}()
	select {
	case line := <-a.lines:
		if why, ok := strings.CutPrefix(line, "SKIP "); ok {
			m.row.Skipped = why
		}
	case <-a.gone:
		return a, fmt.Errorf("the attacker ended: %s", a.log.Last())
	case <-time.After(limit):
	}
	return a, nil
}

// end kills an actor and reads what it reported.
func (m *measurement) end(a *actor) {
	endGroup(a.cmd)
	select {
	case <-a.gone:
	case <-time.After(10 * time.Second):
		m.row.breach("the attacker does not end")
	}
	for {
		select {
		case line := <-a.lines:
			m.row.Did = line
		default:
			return
		}
	}
}

// attack measures one attacked block. The last one ends with SIGTERM to the daemon under attack.
func (m *measurement) attack(last bool) error {
	a, err := m.begin(m.w.actor(m.a.actor(), m.a.args...), m.a.settle())
	if err != nil || m.row.Skipped != "" {
		if a != nil {
			m.end(a)
		}
		return err
	}
	m.block(attacked, a)
	if m.a.check != nil {
		m.row.breach(m.a.check(m.w)...)
	}
	if last && (!m.s.short || m.a.id == "R1") || m.w.daemon.ended(0) {
		return m.restart(a)
	}
	m.end(a)
	m.recover()
	return nil
}

// recover measures how long the daemon needs to return to its state before the attack.
func (m *measurement) recover() {
	begin, missing := time.Now(), ""
	ok := await(20*time.Second, func() bool {
		stats, err := ask(time.Second, m.w.client.Stats)
		if err != nil {
			missing = "no answer: " + err.Error()
			return false
		}
		devices, err := ask(time.Second, m.w.client.Devices)
		u, err2 := usageOf(m.w.daemon.pid())
		missing = fmt.Sprintf("%d sessions, %d devices, %d files; %d, %d, %d before", stats.Sessions, len(devices.Devices), u.files, m.sessions, m.devices, m.files)
		return errors.Join(err, err2) == nil && stats.Sessions <= m.sessions && len(devices.Devices) <= m.devices && u.files <= m.files+spareFiles
	})
	m.row.RecoveryMS = max(m.row.RecoveryMS, ms(time.Since(begin)))
	if !ok {
		m.row.breach("no recovery within 20 s: " + missing)
	}
}

// spareFiles are descriptors that a daemon may keep: connections of the bench, and 17 for a guardian,
// which the first attached program starts.
const spareFiles = 24

// restart ends the daemon with SIGTERM under attack, and starts the next one.
func (m *measurement) restart(a *actor) error {
	d := m.w.daemon
	switch {
	case d.over.Load():
		m.row.breach("the daemon exceeded the unit's memory limit and was killed")
	case d.ended(0):
		m.row.breach("the daemon died: " + d.log.Last())
	default:
		begin := time.Now()
		_ = d.cmd.Process.Signal(syscall.SIGTERM)
		if !d.ended(8 * time.Second) {
			_ = d.cmd.Process.Kill()
			if !d.ended(time.Second) {
				m.row.breach("neither SIGTERM nor SIGKILL ended the daemon")
			}
		}
		m.row.TermMS = ms(time.Since(begin))
	}
	m.end(a)
	if !d.ended(10 * time.Second) {
		return errors.New("the daemon can't be ended, although the attacker is gone")
	}
	took, err := m.w.startDaemon()
	m.row.StartMS = ms(took)
	if err != nil {
		return err
	}
	return m.w.settle()
}

// control measures a block next to a program that costs as much CPU time as the attacker.
func (m *measurement) control() error {
	name, args := "burn", []string{strconv.Itoa(int(m.arms[attacked].attacker))}
	if m.a.control != "" {
		name, args = m.a.control, m.a.args
	}
	a, err := m.begin(m.w.actor(name, args...), m.a.settle())
	if err == nil {
		m.block(controlled, a)
	}
	did := m.row.Did
	if a != nil {
		m.end(a)
	}
	m.row.Did = did
	if m.a.control != "" {
		time.Sleep(1500 * time.Millisecond) // until a scan has noticed that its programs are gone
	}
	return err
}

// block measures one block.
func (m *measurement) block(kind int, a *actor) {
	arm, d := &m.arms[kind], m.w.daemon
	if d.ended(0) {
		return
	}
	stats := make(chan control.Stats, 2)
	count := func() {
		if s, err := ask(300*time.Millisecond, m.w.client.Stats); err == nil {
			stats <- s
		}
	}
	count()
	first, _ := usageOf(d.pid())
	attackerCPU, logged := time.Duration(0), d.logged.Load()
	if a != nil {
		attackerCPU = treeCPU(a.cmd.Process.Pid)
	}
	from := now()
	var probes sync.WaitGroup
	probes.Go(func() { m.probe(arm) })
	for now() < from+int64(m.s.block) {
		time.Sleep(20 * time.Millisecond)
		if u, err := usageOf(d.pid()); err == nil {
			arm.rss, arm.files, arm.threads = max(arm.rss, u.rss), max(arm.files, u.files), max(arm.threads, u.threads)
		}
	}
	to := now()
	seconds := float64(to-from) / 1e9
	if last, err := usageOf(d.pid()); err == nil {
		arm.cpu = max(arm.cpu, 100*(last.cpu-first.cpu).Seconds()/seconds)
		arm.written = max(arm.written, float64(last.written-first.written)/seconds)
		arm.logged = max(arm.logged, float64(d.logged.Load()-logged)/seconds)
	}
	if a != nil {
		arm.attacker = max(arm.attacker, 100*(treeCPU(a.cmd.Process.Pid)-attackerCPU).Seconds()/seconds)
	}
	count()
	probes.Wait()
	if len(stats) == 2 {
		before, after := <-stats, <-stats
		arm.decisions = float64(after.Decisions-before.Decisions) / seconds
	}
	time.Sleep(60 * time.Millisecond) // tenants report in batches
	arm.p99.latencies(m.w.service, from, to)
	arm.job.counts(m.w.job, from, to)
	arm.second.counts(m.w.second, from, to)
	arm.slices += int(int64(m.s.block) / slice)
	arm.dropped += int(int64(m.s.block)/slice) - len(slicesOf(from, to))
	arm.held += len(m.w.held.during(from, to))
}

// probeLimit is how long a request of root may take before the probe gives up.
const probeLimit = 3 * time.Second

// probe does what an operator and a new program do.
func (m *measurement) probe(arm *arm) {
	if arm.probes == nil {
		arm.probes = map[string]time.Duration{}
	}
	m.w.client.Close() // a new connection, as each command has
	for _, p := range []struct {
		name string
		do   func(context.Context) error
	}{
		{"healthz", m.w.healthz},
		{"list", func(ctx context.Context) error { _, err := m.w.client.List(ctx); return err }},
		{"suspend", func(ctx context.Context) error { _, err := m.w.client.Suspend(ctx, m.w.probed.pid()); return err }},
		{"resume", func(ctx context.Context) error { _, err := m.w.client.Resume(ctx, m.w.probed.pid()); return err }},
		{"join", m.w.join},
	} {
		begin := time.Now()
		_, err := ask(probeLimit, func(ctx context.Context) (struct{}, error) { return struct{}{}, p.do(ctx) })
		arm.probes[p.name] = max(arm.probes[p.name], time.Since(begin))
		if err != nil {
			arm.failed = append(arm.failed, fmt.Sprintf("%s of root fails: %v", p.name, err))
		}
	}
}

// healthz asks for the daemon's health over TCP, on a new connection.
func (w *world) healthz(ctx context.Context) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+w.http+"/healthz", nil)
	if err != nil {
		return err
	}
	c := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	answer, err := c.Do(r)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if text, _ := io.ReadAll(answer.Body); answer.StatusCode != http.StatusOK {
		return fmt.Errorf("status %d: %s", answer.StatusCode, strings.TrimSpace(string(text)))
	}
	return nil
}

// join starts a program of another user that joins and leaves.
func (w *world) join(ctx context.Context) error {
	cmd := unitLimits{}.wrap(w.self(), otherUID, w.self(), "act", "join", w.dir, w.platform.Name, w.http)
	cmd.Env = w.env("other")
	var text proc.Tail
	cmd.Stderr = &text
	if err := proc.Start(cmd); err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = cmd.Process.Kill() })
	defer stop()
	if err := cmd.Wait(); err != nil {
		return fmt.Errorf("%w %s", err, text.Last())
	}
	return nil
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
