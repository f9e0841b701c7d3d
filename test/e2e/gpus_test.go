// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"xsched/internal/clock"
	"xsched/internal/control"
	"xsched/internal/driver/nvidia/abi"
	"xsched/internal/model"
)

// gpuTenant is a process on one or several GPUs: testdata/gpus.c.
type gpuTenant struct {
	*program
	on   []int // GPUs, from 0
	high bool
}

// pciOf is the address of a virtual GPU.
func pciOf(gpu int) string { return fmt.Sprintf("0000:%02x:00.0", gpu+1) }

// onGPUs starts a tenant with a request every period on each GPU; period 0 is without pause.
func (w *world) onGPUs(o options, kernel, period time.Duration, gpus ...int) *gpuTenant {
	w.t.Helper()
	path, err := spread()
	if err != nil {
		w.t.Fatal(err)
	}
	argv := []string{path, strconv.FormatInt(kernel.Microseconds(), 10), strconv.FormatInt(period.Microseconds(), 10)}
	for _, g := range gpus {
		argv = append(argv, strconv.Itoa(g))
	}
	return &gpuTenant{program: w.run(o, argv...), on: gpus, high: o.priority > 0}
}

// served is what a tenant got on one GPU since the last report.
type served struct {
	requests      int
	p50, p99, max time.Duration
}

// report returns what the tenant got by address.
func (p *gpuTenant) report() map[string]served {
	p.t.Helper()
	p.send("report")
	out := map[string]served{}
	for range p.on {
		f := strings.Fields(p.expect("T ", soon))
		n := make([]int64, len(f))
		for i := 2; i < len(f); i++ {
			n[i], _ = strconv.ParseInt(f[i], 10, 64)
		}
		us := func(i int) time.Duration { return time.Duration(n[i]) * time.Microsecond }
		out[strings.ToLower(f[1])] = served{int(n[2]), us(3), us(4), us(5)}
	}
	p.expect("D", soon)
	return out
}

// progress waits until the tenant has made so many more requests on each of these GPUs, and returns the number on
// all its GPUs.
func (p *gpuTenant) progress(limit time.Duration, requests int, on ...string) map[string]int {
	p.t.Helper()
	got := map[string]int{}
	eventually(p.t, limit, fmt.Sprintf("%d requests of process %d on each of %v", requests, p.pid(), on), func() bool {
		for gpu, s := range p.report() {
			got[gpu] += s.requests
		}
		return !slices.ContainsFunc(on, func(gpu string) bool { return got[gpu] < requests })
	})
	return got
}

// ready waits until the daemon controls the tenant in hardware on all its GPUs.
func (w *world) ready(p *gpuTenant) {
	w.t.Helper()
	p.expect("R", soon)
	eventually(w.t, soon, fmt.Sprintf("process %d at Lv3 on %d GPUs", p.pid(), len(p.on)), func() bool {
		s := w.process(p.pid())
		if s == nil || len(s.Queues) != len(p.on) {
			return false
		}
		return !slices.ContainsFunc(s.Queues, func(q control.Queue) bool { return q.Level < 3 })
	})
}

// queueOn returns the daemon's view of a process on a GPU.
func (w *world) queueOn(pid, gpu int) *control.Queue {
	if p := w.process(pid); p != nil {
		for i := range p.Queues {
			if p.Queues[i].Device == pciOf(gpu) {
				return &p.Queues[i]
			}
		}
	}
	return nil
}

// TestTwoGPUsInOneProcess: a process is preempted on one GPU and runs on the other. Policy and mode of one GPU do
// not touch the other.
func TestTwoGPUsInOneProcess(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	low := w.onGPUs(options{}, 5*time.Millisecond, 0, 0, 1)
	w.ready(low)
	high := w.onGPUs(options{priority: 10}, 400*time.Millisecond, 0, 0)
	w.ready(high)
	w.must("mode", "--gpu", pciOf(0), "suspend") // else the low has a tiny slice instead
	eventually(t, soon, "the low is suspended on the first GPU only", func() bool {
		one, two := w.queueOn(low.pid(), 0), w.queueOn(low.pid(), 1)
		return one != nil && two != nil && one.State == "suspended" && two.State != "suspended"
	})
	low.report()
	got := low.progress(5*time.Second, 20, pciOf(1))
	if n := got[pciOf(0)]; n > 10 {
		t.Errorf("%d requests on the GPU where it is preempted, %d on the free one", n, got[pciOf(1)])
	}
	// The first GPU stops preempting, and the second is not affected.
	w.must("mode", "--gpu", pciOf(0), "off")
	eventually(t, soon, "the low runs on both", func() bool {
		got := low.report()
		return got[pciOf(0)].requests > 0 && got[pciOf(1)].requests > 0
	})
	list := w.must("list")
	if !strings.Contains(list, "on "+pciOf(0)+": mode off") {
		t.Errorf("the list does not show the setting:\n%s", list)
	}
}

// TestEightGPUsStopTogether: the daemon stops a tenant on 8 GPUs in parallel. Every GPU hangs, so none answers, and
// still each has received its stop. A daemon that waited for one GPU before the next would have sent one.
func TestEightGPUsStopTogether(t *testing.T) {
	const gpus, channels = 8, 8 // channels of a context
	w := newWorldOf(t, gpus)
	p := w.onGPUs(options{}, time.Millisecond, 20*time.Millisecond, 0, 1, 2, 3, 4, 5, 6, 7)
	w.ready(p)
	for g := range gpus {
		if err := w.gpu.SetFault(fmt.Sprintf("hang-gpu:%d", g)); err != nil {
			t.Fatal(err)
		}
	}
	stops := func() map[int]bool {
		stats, err := w.gpu.Stats()
		if err != nil {
			t.Fatal(err)
		}
		got := map[int]bool{}
		for _, h := range stats.Held {
			if h.Command == abi.NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS {
				got[h.Device] = true
			}
		}
		return got
	}
	if got := stops(); len(got) > 0 {
		t.Fatalf("stops in progress before the first one: %v", got)
	}
	if _, err := w.client.Suspend(t.Context(), p.pid()); err != nil {
		t.Fatal(err)
	}
	took := eventually(t, soon, "each GPU has received a stop", func() bool { return len(stops()) == gpus })
	t.Logf("%d GPUs received their stop within %v", gpus, took)
	if err := w.gpu.ClearFaults(); err != nil {
		t.Fatal(err)
	}
	eventually(t, soon, "all channels are stopped", func() bool { return w.account(p.pid()).Stopped == gpus*channels })
	if _, err := w.client.Resume(t.Context(), p.pid()); err != nil {
		t.Fatal(err)
	}
	eventually(t, soon, "all channels run", func() bool { return w.account(p.pid()).Stopped == 0 })
}

// TestHungGPU: a GPU that hangs delays nobody on the others. Tenants there keep their latency and their leases, and
// a tenant that also uses the hung GPU is still scheduled on the others.
func TestHungGPU(t *testing.T) {
	const gpus, hung = 3, 2
	w := newWorldOf(t, gpus)
	var highs, lows []*gpuTenant
	for g := range gpus {
		highs = append(highs, w.onGPUs(options{priority: 10}, 500*time.Microsecond, 10*time.Millisecond, g))
		lows = append(lows, w.onGPUs(options{}, 5*time.Millisecond, 0, g))
	}
	everywhere := w.onGPUs(options{}, 5*time.Millisecond, 0, 0, 1, 2)
	for _, p := range append(append(slices.Clone(highs), lows...), everywhere) {
		w.ready(p)
	}
	// measure waits until each tenant has made 20 more requests on the other GPUs, and returns the P99 of the time
	// that the highs' kernels waited there, by the device's own record.
	measure := func() time.Duration {
		from := nowNS()
		var pids []int
		for g := range gpus {
			if g == hung {
				continue
			}
			pids = append(pids, highs[g].pid())
			for _, p := range []*gpuTenant{highs[g], lows[g], everywhere} {
				p.report()
				p.progress(10*time.Second, 20, pciOf(g))
			}
		}
		waits, err := w.gpu.Waits(model.Time(from), model.Time(nowNS()))
		if err != nil {
			t.Fatal(err)
		}
		var times []time.Duration
		for _, k := range waits {
			if slices.Contains(pids, k.PID) {
				times = append(times, time.Duration(k.Started-k.Submitted))
			}
		}
		slices.Sort(times)
		return times[(len(times)*99+99)/100-1]
	}
	recoveries := func() (n uint64) {
		for g := range gpus {
			if g == hung {
				continue
			}
			for _, p := range []*gpuTenant{highs[g], lows[g]} {
				if s := w.process(p.pid()); s != nil {
					n += s.Counters.Recoveries
				} else {
					t.Errorf("process %d is no longer managed", p.pid())
				}
			}
		}
		return n
	}
	before := measure()
	recovered := recoveries()
	if err := w.gpu.SetFault(fmt.Sprintf("hang-gpu:%d", hung)); err != nil {
		t.Fatal(err)
	}
	started := nowNS()
	// An operation on the hung GPU that never returns.
	if _, err := w.xsched("suspend", strconv.Itoa(lows[hung].pid())); err != nil {
		t.Logf("suspend on the hung GPU: %v", err)
	}
	after := measure()
	late := machine().in(started, nowNS())
	t.Logf("P99 of the wait on the other GPUs %v before, %v during; delays of the machine %v", before, after, late)
	if after > 2*before+late+2*time.Millisecond {
		t.Errorf("P99 of the wait on the other GPUs is %v, was %v", after, before)
	}
	if n := recoveries() - recovered; n > 0 && late < 50*time.Millisecond {
		t.Errorf("tenants of other GPUs recovered %d times: their leases had ended", n)
	}
	eventually(t, soon, "stats name the hung GPU, and no other", func() bool {
		stats, err := w.client.Stats(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		named := false
		for _, target := range stats.Targets {
			if target.StuckForMS > 0 {
				named = named || target.Device == pciOf(hung)
				if target.Device != pciOf(hung) && target.StuckForMS > 1000 {
					t.Fatalf("stuck on %s", target.Device)
				}
			}
		}
		return named
	})
	if err := w.gpu.ClearFaults(); err != nil {
		t.Fatal(err)
	}
	w.must("resume", strconv.Itoa(lows[hung].pid()))
	lows[hung].report()
	eventually(t, soon, "the tenant of the hung GPU runs again", func() bool {
		return lows[hung].report()[pciOf(hung)].requests > 0
	})
}

// TestManyAttached is TestLongManyAttached at a size for every run.
func TestManyAttached(t *testing.T) { w := newWorldOf(t, 4); w.manyAttached(4, 16, 4*time.Second, 25) }

// TestLongManyAttached: 200 attached programs cost the daemon little CPU time. A quarter of them work.
func TestLongManyAttached(t *testing.T) {
	w := newWorldOf(t, 8)
	w.manyAttached(8, 200, 20*time.Second, 40)
}

func (w *world) manyAttached(gpus, tenants int, length time.Duration, most float64) {
	t := w.t
	t.Helper()
	var all []*gpuTenant
	for i := range tenants {
		period := 10 * time.Minute // idle
		if i%4 == 0 {
			period = time.Second
		}
		all = append(all, w.onGPUs(options{plain: true}, time.Millisecond, period, i%gpus))
	}
	began := time.Now()
	for _, p := range all {
		p.expect("R", time.Minute)
		if _, err := w.client.Attach(t.Context(), p.pid()); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("attached to %d programs in %v", tenants, time.Since(began).Round(time.Millisecond))
	device := func() time.Duration {
		cpu, err := clock.CPUTime(w.device.Process.Pid)
		if err != nil {
			t.Fatal(err)
		}
		return cpu
	}
	before, err := clock.CPUTime(w.serve.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	start, gpu := time.Now(), device()
	time.Sleep(length)
	after, _ := clock.CPUTime(w.serve.Process.Pid)
	took := float64(time.Since(start))
	cpu := 100 * float64(after-before) / took
	t.Logf("daemon: %.1f %% of a core; device process: %.1f %%", cpu, 100*float64(device()-gpu)/took)
	if cpu > most {
		t.Errorf("the daemon uses %.0f %% of a core, want %.0f", cpu, most)
	}
}

// TestManyGPUs is TestLongManyGPUs at a size for every run.
func TestManyGPUs(t *testing.T) { w := newWorldOf(t, 4); w.manyGPUs(4, 20, 3*time.Second) }

// TestLongManyGPUs: 8 GPUs and 200 tenant processes, a quarter each on 2 and on all 8 GPUs, the others on one. On
// each GPU one tenant is latency-critical and two are never idle; the others send a request per second.
func TestLongManyGPUs(t *testing.T) { w := newWorldOf(t, 8); w.manyGPUs(8, 200, 20*time.Second) }

// crowdOn starts the tenants.
func (w *world) crowdOn(gpus, tenants int) []*gpuTenant {
	w.t.Helper()
	var all []*gpuTenant
	everywhere := make([]int, gpus)
	for g := range everywhere {
		everywhere[g] = g
	}
	limit := make(chan struct{}, 8)
	var started sync.WaitGroup
	for i := range tenants {
		var p *gpuTenant
		switch g, rest := i%gpus, i-3*gpus; {
		case i < gpus:
			p = w.onGPUs(options{priority: 10}, time.Millisecond, 50*time.Millisecond, g)
		case i < 3*gpus:
			p = w.onGPUs(options{}, 20*time.Millisecond, 0, g)
		case rest%4 == 0:
			p = w.onGPUs(options{}, 2*time.Millisecond, time.Second, everywhere...)
		case rest%4 == 1:
			p = w.onGPUs(options{}, 2*time.Millisecond, time.Second, g, (g+1)%gpus)
		default:
			p = w.onGPUs(options{}, 2*time.Millisecond, time.Second, g)
		}
		all = append(all, p)
		limit <- struct{}{}
		started.Go(func() {
			p.expect("R", time.Minute)
			<-limit
		})
	}
	started.Wait()
	return all
}

func (w *world) manyGPUs(gpus, tenants int, length time.Duration) {
	t := w.t
	t.Helper()
	began := time.Now()
	all := w.crowdOn(gpus, tenants)
	queues := 0
	for _, p := range all {
		queues += len(p.on)
	}
	stats := func() control.Stats {
		st, err := w.client.Stats(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return st
	}
	eventually(t, time.Minute, "all queues are known at Lv3", func() bool {
		list, err := w.client.List(t.Context())
		known := 0
		for i := range list.Processes {
			for _, q := range list.Processes[i].Queues {
				if q.Level == 3 {
					known++
				}
			}
		}
		return err == nil && known == queues
	})
	t.Logf("%d tenants with %d queues on %d GPUs, ready after %v", len(all), queues, gpus, time.Since(began).Round(time.Millisecond))
	for _, p := range all {
		p.report()
	}
	before, from, start := stats(), nowNS(), time.Now()
	cpuBefore, _ := clock.CPUTime(w.serve.Process.Pid)
	time.Sleep(length)
	after := stats()
	cpuAfter, _ := clock.CPUTime(w.serve.Process.Pid)
	to := nowNS()
	elapsed, delays := time.Since(start), machine().in(from, to)

	starved, highP99, lowMax := 0, time.Duration(0), time.Duration(0)
	for _, p := range all {
		for _, s := range p.report() {
			if s.requests == 0 {
				starved++
			}
			if p.high {
				highP99 = max(highP99, s.p99)
			} else {
				lowMax = max(lowMax, s.max)
			}
		}
	}
	cpu := 100 * float64(cpuAfter-cpuBefore) / float64(elapsed)
	stop := after.PreemptTime[3]
	_, decisions := inside(t, before.Decision, after.Decision, 1000)
	_, stops := inside(t, before.PreemptTime[3], stop, 1000)
	t.Logf("decisions %d: P50 %.0f us, P99 %.0f us; arrival to decision P50 %.0f us, P99 %.0f us", decisions,
		after.Decision.P50US, after.Decision.P99US, after.BusyToDecision.P50US, after.BusyToDecision.P99US)
	t.Logf("stops at Lv3 %d: P50 %.0f us, P99 %.0f us from order to acknowledged", stops, stop.P50US, stop.P99US)
	t.Logf("heartbeat late: P99 %.0f us, max %.0f us; recoveries and undone %d", after.HeartbeatLate.P99US, after.HeartbeatLate.MaxUS, after.Undone-before.Undone)
	t.Logf("daemon: %.1f %% of a core, %d MB; highs: worst P99 %v; lows: longest request %v; delays of the machine %v", cpu,
		rss(t, w.serve.Process.Pid)>>20, highP99, lowMax, delays)
	if starved > 0 {
		t.Errorf("%d queues made no request in %v", starved, length)
	}
	if decisions == 0 || stops == 0 {
		t.Errorf("%d decisions, %d stops", decisions, stops)
	}
	// A delay of the machine excuses a heartbeat.
	inTime, beats := inside(t, before.HeartbeatLate, after.HeartbeatLate, 20e3)
	if late := beats - inTime; late > beats/100+machine().count(from, to) {
		t.Errorf("%d of %d heartbeats are more than 20 ms late", late, beats)
	}
	if cpu > 60 {
		t.Errorf("the daemon uses %.0f %% of a core", cpu)
	}
}
