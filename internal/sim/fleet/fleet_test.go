// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"encoding/json"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// randomPods makes a trace of services and jobs that load some GPUs.
func randomPods(r *rand.Rand, n int, gangs bool) []Pod {
	var out []Pod
	for range n {
		p := Pod{Arrive: time.Duration(r.IntN(8*3600)) * time.Second, GPUs: 1, Memory: 1 + r.IntN(150), Priority: r.IntN(3)}
		if r.IntN(3) == 0 {
			shape := requestShapes[r.IntN(len(requestShapes))].length()
			p.Service, p.Request, p.P99, p.Day = true, shape, 10*shape, "office"
			p.Rate = 0.5 * r.Float64() / shape.Seconds()
			p.Duration = time.Duration(r.IntN(4)) * time.Hour
			p.Priority += 1000
		} else {
			p.Duration = time.Duration(60+r.IntN(3*3600)) * time.Second
			p.Kernel = batchKernels[r.IntN(len(batchKernels))]
			if gangs {
				p.GPUs = 1 + r.IntN(10)
			}
		}
		if err := p.complete(); err != nil {
			panic(err)
		}
		out = append(out, p)
	}
	sortPods(out)
	return out
}

// checkCluster recounts all allocations.
func checkCluster(t *testing.T, w *world) {
	t.Helper()
	c := w.cluster
	share, memory := make([]int, len(c.devices)), make([]int, len(c.devices))
	count := map[taskState]int{}
	for i := range w.tasks {
		task := &w.tasks[i]
		count[task.state]++
		if task.state == running && len(task.on) != task.pod.GPUs {
			t.Fatalf("a task of %d GPUs has %v", task.pod.GPUs, task.on)
		}
		if task.state != running && task.on != nil {
			t.Fatalf("a task that does not run has %v", task.on)
		}
		seen, nodes := map[int]bool{}, map[int]int{}
		for _, d := range task.on {
			share[d] += task.claim.share
			given, ok := c.nodes[c.home[d]].takes(&task.claim)
			if !ok {
				t.Fatalf("a pod of %q with %d GiB is on %+v", task.pod.Models, task.pod.Memory, c.nodes[c.home[d]])
			}
			memory[d] += given
			seen[d] = true
			nodes[c.home[d]]++
		}
		if len(seen) != len(task.on) {
			t.Fatalf("one GPU twice: %v", task.on)
		}
		if task.state == running && task.pod.GPUs <= c.most(&task.claim) && len(nodes) != 1 {
			t.Fatalf("a pod of %d GPUs is on nodes %v", task.pod.GPUs, nodes)
		}
	}
	for i := range c.devices {
		d := &c.devices[i]
		if share[i] > 100 || memory[i] > c.nodes[c.home[i]].Memory || share[i] != d.share || memory[i] != d.memory {
			t.Fatalf("device %d: share %d, memory %d; counted %d, %d", i, share[i], memory[i], d.share, d.memory)
		}
		if w.config.Rule.Apart && len(d.services) > 0 && len(d.jobs) > 0 {
			t.Fatalf("device %d has a service and a job", i)
		}
	}
	waiting := 0
	for k, n := range w.waiting {
		if waiting += n; n < 1 || !slices.ContainsFunc(w.queue, func(t *task) bool { return t.claim == k }) {
			t.Fatalf("%d tasks of claim %+v are said to wait", n, k)
		}
	}
	if waiting != len(w.queue) {
		t.Fatalf("%d of %d queued tasks are said to wait", waiting, len(w.queue))
	}
	if count[pending] != len(w.queue) || count[future] != len(w.tasks)-w.arrived {
		t.Fatalf("%v, but %d are queued and %d arrived", count, len(w.queue), w.arrived)
	}
}

// TestNeverOversold checks after every event of random traces that no GPU is oversold, that gangs are
// whole, and that no pod is lost.
func TestNeverOversold(t *testing.T) {
	evictions := 0
	for seed := range uint64(24) {
		r := rand.New(rand.NewPCG(seed, 1))
		how := Sharings()[seed%4]
		rules := Rules(how)
		c := Config{
			Nodes: 1 + r.IntN(3), GPUs: 1 + r.IntN(8), Sharing: how, Rule: rules[r.IntN(len(rules))], Cost: 1, Length: 10 * time.Hour,
			Score: []Score{MostAllocated, LeastAllocated, FirstFit}[r.IntN(3)], Preempt: r.IntN(2) == 0, Strict: r.IntN(4) == 0,
		}
		pods := randomPods(r, 60, true)
		if seed%2 == 1 { // GPUs of two kinds
			c.List = Interleave([]Node{{2, 24, "A10"}, {8, 80, "A100"}, {2, 24, "A10"}, {4, 141, "H200"}})
			c.Nodes = 2 + r.IntN(3)
			for i := range pods {
				pods[i].Models = []string{"", "A10", "A100|H200", "none"}[r.IntN(4)]
			}
		}
		w, err := newWorld(pods, c)
		if err != nil {
			t.Fatal(err)
		}
		for w.next() {
			checkCluster(t, w)
		}
		w.finish()
		got := &w.result
		if got.Arrived != got.Finished+got.Running+got.Pending || got.Arrived+got.NotArrived != len(w.tasks) || got.Arrived == 0 {
			t.Errorf("seed %d: %d arrived, %d finished, %d running, %d pending", seed, got.Arrived, got.Finished, got.Running, got.Pending)
		}
		if got.Busy < 0 || got.Busy > 1 || got.Occupied < got.Busy-1e-9 || got.Occupied > 1+1e-9 {
			t.Errorf("seed %d: busy %v, occupied %v", seed, got.Busy, got.Occupied)
		}
		evictions += got.Evictions
	}
	if evictions == 0 {
		t.Error("no seed evicts a job")
	}
}

// TestSameSeed checks that a simulation depends on its seed only.
func TestSameSeed(t *testing.T) {
	text := func(seed uint64) string {
		m, err := FindMix("mixed")
		if err != nil {
			t.Fatal(err)
		}
		r, err := Run(t.Context(), m.Generate(30, seed), Config{Nodes: 4, GPUs: 8, Sharing: XSched, Rule: Rules(XSched)[0], Cost: 1})
		if err != nil {
			t.Fatal(err)
		}
		out, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		return string(out)
	}
	first := text(1)
	if text(1) != first || text(2) == first {
		t.Error("equal seeds differ, or different seeds are equal")
	}
}

// TestMoreGPUs checks that no job of a plain queue waits longer with more GPUs.
func TestMoreGPUs(t *testing.T) {
	for seed := range uint64(10) {
		pods := randomPods(rand.New(rand.NewPCG(seed, 2)), 100, false)
		for i := range pods {
			pods[i].Priority = 0
		}
		var before []task
		for nodes := 1; nodes <= 12; nodes++ {
			c := Config{Nodes: nodes, GPUs: 2, Memory: 150, Sharing: Exclusive, Rule: whole, Strict: true, Score: FirstFit}
			w, err := newWorld(pods, c)
			if err != nil {
				t.Fatal(err)
			}
			for w.next() {
			}
			w.finish()
			for i := range before {
				if w.tasks[i].waited > before[i].waited {
					t.Fatalf("seed %d: pod %d waits %v on %d nodes, %v on one less", seed, i, w.tasks[i].waited, nodes, before[i].waited)
				}
			}
			before = w.tasks
		}
	}
}

// TestFreeSwitching checks that XSched without switching costs needs no more GPUs than exclusive use,
// also if it has to share.
func TestFreeSwitching(t *testing.T) {
	for _, m := range Mixes() {
		pods := m.Generate(64, 3)
		c := Config{Nodes: 24, GPUs: 8, Sharing: Exclusive}
		alone, err := FindNeed(t.Context(), pods, c, Rules(Exclusive), nil)
		if err != nil {
			t.Fatal(err)
		}
		c.Sharing = XSched
		rules := Rules(XSched)
		ours, err := FindNeed(t.Context(), pods, c, rules[:len(rules)-1], nil)
		if err != nil {
			t.Fatal(err)
		}
		if alone.GPUs == 0 || ours.GPUs == 0 || ours.GPUs > alone.GPUs || !ours.Result.Kept() {
			t.Errorf("%s: exclusive %d, XSched %d (%s)", m.Name, alone.GPUs, ours.GPUs, ours.Rule)
		}
	}
}

// TestThousandNodes checks two hours of 1,000 nodes with 8 GPUs: a load with more services than GPUs fits
// if XSched shares them, and no GPU is oversold.
func TestThousandNodes(t *testing.T) {
	m, err := FindMix("online")
	if err != nil {
		t.Fatal(err)
	}
	pods := m.Generate(12_000, 1)
	const length = 2 * time.Hour
	c := Config{Nodes: 1000, GPUs: 8, Sharing: Exclusive, Rule: whole, Abort: true, Length: length}
	alone, err := Run(t.Context(), pods, c)
	if err != nil {
		t.Fatal(err)
	}
	c.Sharing, c.Cost = XSched, 1
	c.Rule = Rule{Headroom: 2, BatchShare: 5, HalfMemory: true}
	w, err := newWorld(pods, c)
	if err != nil {
		t.Fatal(err)
	}
	checked := 0
	for w.next() {
		if part := int(4 * w.now / length); part > checked {
			checkCluster(t, w)
			checked = part
		}
	}
	checkCluster(t, w)
	w.finish()
	ours := &w.result
	if alone.Kept() || !ours.Kept() || checked < 3 {
		t.Errorf("exclusive kept: %v, XSched: %v (%d services waited, late %v h, %d of %d jobs overdue)",
			alone.Kept(), ours.Kept(), ours.ServicesWaited, ours.LateHours, ours.Overdue, ours.Jobs)
	}
	if ours.Services <= ours.GPUs || ours.Finished < int(2500*length.Hours()) || ours.Arrived != ours.Finished+ours.Running || ours.Arrived != len(pods)-ours.NotArrived {
		t.Errorf("%d services and %d jobs on %d GPUs: of %d arrived %d finished, %d run", ours.Services, ours.Jobs, ours.GPUs, ours.Arrived, ours.Finished, ours.Running)
	}
}

// TestJobsTakeTheirTime checks the arithmetic of one job alone, beside another, and after an eviction.
func TestJobsTakeTheirTime(t *testing.T) {
	job := func(arrive, length time.Duration) Pod {
		p := Pod{Arrive: arrive, Duration: length, GPUs: 1, Memory: 10, Kernel: time.Millisecond}
		if err := p.complete(); err != nil {
			t.Fatal(err)
		}
		return p
	}
	ends := func(c Config, pods ...Pod) []time.Duration {
		c.Nodes, c.GPUs, c.Cost = 1, 1, 1
		w, err := newWorld(pods, c)
		if err != nil {
			t.Fatal(err)
		}
		for w.next() {
		}
		var out []time.Duration
		for i := range w.tasks {
			out = append(out, w.tasks[i].ended.Round(time.Second))
		}
		return out
	}
	exclusive := Config{Sharing: Exclusive, Rule: whole}
	if got := ends(exclusive, job(0, time.Hour), job(time.Minute, time.Hour)); got[0] != time.Hour || got[1] != 2*time.Hour {
		t.Errorf("one after the other: %v", got)
	}
	shared := Config{Sharing: MPS, Rule: Rule{Slots: 2}} // loses nothing
	if got := ends(shared, job(0, time.Hour), job(0, time.Hour)); got[0] != 2*time.Hour || got[1] != got[0] {
		t.Errorf("at once: %v", got)
	}
	service := Pod{Service: true, Arrive: 40 * time.Minute, Duration: time.Hour, GPUs: 1, Memory: 10, Priority: 1, Request: time.Millisecond, P99: time.Second}
	if err := service.complete(); err != nil {
		t.Fatal(err)
	}
	exclusive.Preempt = true
	// Evicted after 40 minutes with a checkpoint at 30, the job goes on for 30 minutes after the service.
	if got := ends(exclusive, job(0, time.Hour), service); got[0] != 130*time.Minute || got[1] != 100*time.Minute {
		t.Errorf("evicted: %v", got)
	}
}
