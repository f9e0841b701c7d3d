// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"xsched/internal/control"
	"xsched/internal/keeper"
)

const (
	tick = 10 * time.Millisecond
	// maxAbsence is the longest time between two ticks for which the watcher knows what happened. It
	// sees only the last progress, so a longer absence would look like a gap.
	maxAbsence = 10 * tick
	// reportDelay is the time in which the report of progress arrives.
	reportDelay = 50 * time.Millisecond
)

// watch compares the progress of every tenant with its bound until the world closes.
func (w *world) watch() {
	defer close(w.watching)
	last := now()
	for !w.closing.Load() {
		time.Sleep(tick)
		h := w.daemon.health()
		at := now()
		for _, t := range w.tenants {
			if at-last > int64(maxAbsence) {
				t.watch.restart(at)
			}
		}
		last = at
		for _, t := range w.tenants {
			w.judge(t, h)
		}
	}
}

func (w *world) judge(t *tenant, h health) {
	count, progress := t.iterations()
	w.judgeHeld(t, h, count)
	at := now()
	bound, why := w.bound(t, h, at)
	before := t.watch
	gap, waiting := t.watch.follow(at, bound, why, progress)
	if bound != before.bound && before.bound > 0 && progress <= before.since {
		w.judgeEnd(t, before, at)
	}
	if bound == 0 || gap.to == 0 {
		return
	}
	net := w.stalls.elapsed(gap.from, gap.to)
	late := net - bound - w.grace()
	switch {
	case !waiting:
		w.ledger.gap(gap, net, bound)
		if late > 0 {
			w.ledger.violate(gap.from, "late", t.role, "no progress for %v (%v on the clock), %s allows %v; meanwhile %s",
				net.Round(time.Millisecond), time.Duration(gap.to-gap.from).Round(time.Millisecond), why, bound+grace, t.watch.known())
		}
		t.watch.note = nil
	// Its report may be under way, so that only a clear case counts before it arrives.
	case late > 0 && t.watch.note == nil:
		t.watch.note = w.describeLater()
	case late > stuckAfter && !t.watch.told:
		t.watch.told = true
		w.ledger.violate(gap.from, "stuck", t.role, "no progress for %v, %s allows %v; %s", net.Round(time.Millisecond), why, bound+grace, w.describe(t))
	}
}

// grace is the tolerance of every bound.
func (w *world) grace() time.Duration {
	if w.ledger.recent(grace, "cpu-hog") {
		return 2 * grace // helper threads and the guardian compete with it at normal priority
	}
	return grace
}

// judgeEnd judges a tenant that was late when the situation changed. Its report may be under way.
func (w *world) judgeEnd(t *tenant, before watch, at int64) {
	net := w.stalls.elapsed(before.since, at)
	if net > before.bound+w.grace()+reportDelay && !before.told {
		w.ledger.violate(before.since, "late", t.role, "no progress for %v until the situation changed, %s allows %v; meanwhile %s",
			net.Round(time.Millisecond), before.why, before.bound+grace, before.known())
	}
}

// bound is how long a tenant may go without progress now; 0: it is excused.
func (w *world) bound(t *tenant, h health, at int64) (time.Duration, string) {
	if why, yes := t.excused(); yes {
		return 0, why
	}
	switch {
	case t.bare && (w.orphaned(h, at) || h.old):
		return 0, "neither daemon nor guardian of this release"
	case h.old:
		return olderBound, "an older release"
	case h.native:
		return nativeBound, "a silent daemon"
	case h.ready == 0:
		return policyBound, "a starting daemon"
	case t.bare:
		return bareBound, "an unmanaged or attached program"
	case w.ledger.recent(time.Second, "device-refuses", "daemon-files", "daemon-memory"):
		return bareBound, "a daemon without control"
	case t.role == "high" && h.policy == w.setup.policy() && h.mode == "live" && at-max(h.settled, h.ready) > int64(2*time.Second):
		return highBound, "the highest priority"
	}
	return policyBound, "policy " + h.policy
}

// heldSettle is the time until a suspension by hand must be in force, also after an interruption.
const heldSettle = nativeBound + grace

// judgeHeld checks that a program suspended by hand does not run while the daemon is well.
func (w *world) judgeHeld(t *tenant, h health, count int) {
	if ran, from := w.ranHeld(t, h, count); ran > 0 {
		w.ledger.violate(from, "held", t.role, "suspended by hand, but ran %d iterations; waited %v for processors; %s",
			ran, w.stalls.in(from, now()).Round(time.Millisecond), w.describe(t))
	}
}

// ranHeld returns the iterations of a held program, and since when it must not run.
func (w *world) ranHeld(t *tenant, h health, count int) (ran int, from int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	at := now()
	disturbed := h.native || h.old || h.mode == "off" || h.ready == 0 || at-h.settled < int64(heldSettle) ||
		w.ledger.recent(time.Second, "device-hang", "device-refuses", "daemon-files", "daemon-memory")
	// A debugger that is killed frees its program until another one has it. Without a shim, level 1 has no effect.
	disturbed = disturbed || t.bare && (strings.HasPrefix(h.mode, "level") || w.ledger.recent(time.Second, "guardian-kill", "both-kill"))
	// On a starved machine heartbeats are late, and programs rightly run by themselves.
	disturbed = disturbed || w.stalls.in(at-int64(heldSettle), at) > heldSettle/10
	if !t.held || disturbed || h.ready > t.heldAt {
		t.watch.heldFrom, t.watch.heldCount = at, count
		return 0, 0
	}
	if w.stalls.elapsed(t.watch.heldFrom, at) < heldSettle {
		t.watch.heldCount = count
		return 0, 0
	}
	if count <= t.watch.heldCount+1 {
		return 0, 0
	}
	t.held = false
	return count - t.watch.heldCount, t.watch.heldFrom
}

// describeLater describes every tenant in the background, first the device's view, then the daemon's.
// A silent daemon answers late, and the watcher must not wait for it.
func (w *world) describeLater() <-chan string {
	out := make(chan string, 2)
	go func() {
		for _, view := range []func(*tenant) string{w.onDevice, w.inDaemon} {
			var all []string
			for _, t := range w.tenants {
				all = append(all, t.role+": "+view(t))
			}
			out <- strings.Join(all, " | ")
		}
	}()
	return out
}

// describe states what device and daemon know about a tenant.
func (w *world) describe(t *tenant) string { return w.onDevice(t) + "; " + w.inDaemon(t) }

func (w *world) onDevice(t *tenant) string {
	stats, err := w.gpu.Stats()
	if err != nil {
		return "device: " + err.Error()
	}
	a, ok := stats.Client(t.pid())
	if !ok {
		return "device: unknown"
	}
	return fmt.Sprintf("device: %d channels stopped, slice %d us", a.Stopped, a.SliceNS/1000)
}

func (w *world) inDaemon(t *tenant) string {
	list, err := call(time.Second, w.daemon.client.List)
	if err != nil {
		return "daemon: " + err.Error()
	}
	p := find(list, t.pid())
	if p == nil {
		return "daemon: unknown"
	}
	var b strings.Builder
	fmt.Fprintf(&b, "daemon: held %v, attached %v, %d recoveries", p.Held, p.Attached, p.Counters.Recoveries)
	for _, q := range p.Queues {
		fmt.Fprintf(&b, ", queue %d %s busy %v level %d slice %d us %s", q.Index, q.State, q.Busy, q.Level, q.SliceUS, q.LevelReason)
	}
	stats, err := call(time.Second, w.daemon.client.Stats)
	if err == nil {
		fmt.Fprintf(&b, ", heartbeat up to %.0f ms late", stats.HeartbeatLate.MaxUS/1000)
		for _, target := range stats.Targets {
			if target.PID == t.pid() {
				fmt.Fprintf(&b, ", errors %d, undone %d, stuck %d ms, last error %q", target.Errors, target.Undone, target.StuckForMS, target.LastError)
			}
		}
	}
	return b.String()
}

// quiet checks what must hold when no fault is active. The first check takes the base line.
func (w *world) quiet(first bool) {
	begin := now()
	say := func(rule, role, format string, args ...any) { w.ledger.violate(begin, rule, role, format, args...) }
	_ = w.gpu.ClearFaults()
	w.daemon.renew()
	if !w.daemon.awaitUp(10 * time.Second) {
		say("start", "daemon", "does not answer within 10 s: %s", strings.Join(w.daemon.log.Lines(3), " | "))
		return
	}
	// The daemon answers when the change is on the disk, or after SaveTime if the disk is slow.
	const answers = keeper.SaveTime + time.Second
	var refusal error
	if !w.eventually(5*time.Second, func() bool {
		_, refusal = call(answers, func(ctx context.Context) (control.PolicyReply, error) {
			return w.daemon.client.SetPolicy(ctx, control.PolicyRequest{Name: w.setup.policy()})
		})
		if refusal == nil {
			_, refusal = call(answers, func(ctx context.Context) (control.ModeReply, error) {
				return w.daemon.client.SetMode(ctx, control.ModeRequest{Mode: "live"})
			})
		}
		return refusal == nil
	}) {
		say("control", "daemon", "refuses a policy or a mode for 5 s: %v; log: %s", refusal, strings.Join(w.daemon.log.Lines(5), " | "))
		return
	}
	w.daemon.set(w.setup.policy(), "live")
	w.checkRecords(say)
	w.checkNode(say)
	var list control.List
	missing := ""
	if !w.eventually(5*time.Second, func() (ok bool) {
		var err error
		if list, err = call(time.Second, w.daemon.client.List); err != nil {
			missing = err.Error()
			return false
		}
		missing = ""
		for _, t := range w.tenants {
			if p := find(list, t.pid()); p == nil || len(p.Queues) == 0 {
				missing += " " + t.role
				if err := w.attached.Load(); t.bare && err != nil {
					missing += fmt.Sprintf(" (attach: %v)", *err)
				}
			}
		}
		return missing == ""
	}) {
		say("rejoin", "", "not managed within 5 s:%s", missing)
		return
	}
	w.batches = 0
	for _, t := range w.tenants {
		p := find(list, t.pid())
		if p.Held {
			say("held", t.role, "still held by hand")
		}
		for _, q := range p.Queues {
			w.batches += q.Bursts
		}
	}
	w.allRun(bareBound+grace, "stuck")
	for _, t := range w.tenants {
		if err := t.check(); err != nil {
			rule := "checksum"
			if _, wrong := err.(errWrong); !wrong { //nolint:errorlint // returned unwrapped
				rule = "stuck"
			}
			say(rule, t.role, "%v; %s", err, w.describe(t))
		}
	}
	if w.ledger.failed() {
		return
	}
	w.checkUsage(first, say)
}

// allRun waits until every tenant made progress from now on.
func (w *world) allRun(limit time.Duration, rule string) {
	begin := now()
	for _, t := range w.tenants {
		if !w.eventually(limit, func() bool { _, p := t.iterations(); return p > begin }) {
			w.ledger.violate(begin, rule, t.role, "no progress within %v; %s", limit, w.describe(t))
		}
	}
}

const (
	spareFiles      = 6 // connections of this harness
	spareGoroutines = 20
	spareKB         = 64 << 10
)

// checkUsage compares the daemon's resources with the base line of this world.
func (w *world) checkUsage(first bool, say func(rule, role, format string, args ...any)) {
	var u usage
	measure := func() bool {
		cmd := w.daemon.process()
		if cmd == nil {
			return false
		}
		entries, err := os.ReadDir("/proc/" + strconv.Itoa(cmd.Process.Pid) + "/fd")
		if err != nil {
			return false
		}
		stats, err := call(2*time.Second, w.daemon.client.Stats)
		if err != nil {
			return false
		}
		u = usage{files: len(entries), goroutines: stats.Goroutines, rssKB: memoryKB(cmd.Process.Pid)}
		return true
	}
	if first {
		if w.eventually(5*time.Second, measure) {
			w.baseline = u
		}
		return
	}
	b := w.baseline
	if !w.eventually(5*time.Second, func() bool {
		return measure() && u.files <= b.files+spareFiles &&
			(b.goroutines == 0 || u.goroutines <= b.goroutines+spareGoroutines) && u.rssKB <= b.rssKB+spareKB
	}) {
		say("leak", "daemon", "%d descriptors, %d goroutines, %d KB; first %d, %d, %d KB", u.files, u.goroutines, u.rssKB, b.files, b.goroutines, b.rssKB)
	}
}

// memoryKB is the resident memory of a process.
func memoryKB(pid int) int64 {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/statm")
	if err != nil {
		return 0
	}
	f := strings.Fields(string(text))
	if len(f) < 2 {
		return 0
	}
	pages, _ := strconv.ParseInt(f[1], 10, 64)
	return pages * int64(os.Getpagesize()) / 1024
}

// nativeSliceNS is the driver's default timeslice on the platform with timeslices.
const nativeSliceNS = 2048000

// farewell ends the daemon and checks that its programs run natively and end well.
func (w *world) farewell() {
	begin := now()
	say := func(rule, role, format string, args ...any) { w.ledger.violate(begin, rule, role, format, args...) }
	how := syscall.SIGTERM
	if w.setup.EndKill {
		how = syscall.SIGKILL
	}
	for _, t := range w.tenants {
		end := t.excuse("the end")
		defer end()
	}
	w.closing.Store(true) // the supervisor starts no other
	<-w.watching
	<-w.tending
	<-w.asking
	_ = w.daemon.signal(how, 0)
	w.allRun(nativeBound+grace, "native")
	if !w.eventually(10*time.Second, func() bool { return w.daemon.process() == nil }) {
		say("end", "daemon", "did not end within 10 s after %v", how)
	}
	w.checkNative(say)
	for _, t := range w.tenants {
		if err := t.finish(); err != nil {
			say("checksum", t.role, "%v", err)
		}
	}
	if w.ledger.failed() {
		return
	}
	w.guardian.end(syscall.SIGTERM)
	if !w.eventually(5*time.Second, func() bool { return len(w.guardians()) == 0 }) {
		say("left", "guardian", "processes %v are left 5 s after the daemon", w.guardians())
	}
	files := 0
	if !w.eventually(3*time.Second, func() bool {
		stats, err := w.gpu.Stats()
		if err == nil {
			files = stats.Files
		}
		return err == nil && files == 0
	}) {
		say("left", "device", "%d files of the device are still open", files)
	}
}

// checkNative checks on the device that nobody is stopped and that everybody has a native share.
func (w *world) checkNative(say func(rule, role, format string, args ...any)) {
	bad := ""
	if !w.eventually(time.Second, func() bool {
		stats, err := w.gpu.Stats()
		if err != nil {
			bad = err.Error()
			return false
		}
		bad = ""
		for _, t := range w.tenants {
			a, ok := stats.Client(t.pid())
			if ok && (a.Stopped > 0 || !w.platform.OwnerSuspends && a.SliceNS != nativeSliceNS) {
				bad += fmt.Sprintf(" %s: %d channels stopped, slice %d us;", t.role, a.Stopped, a.SliceNS/1000)
			}
		}
		return bad == ""
	}) {
		say("native", "", "not native a second after the daemon ended:%s", bad)
	}
}

// set notes a change of policy or mode; empty: unchanged.
func (d *daemon) set(policy, mode string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if policy != "" && policy != d.policy {
		d.policy, d.settled = policy, now()
	}
	if mode != "" && mode != d.mode {
		d.mode, d.settled = mode, now()
	}
}
