// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// storm injects faults into a world of programs whose memory moves. Which ones, and when, follows from the seed.
type storm struct {
	*movables
	random  *rand.Rand
	holders []*holder
	highest *holder // allocates what needs the others' memory
	extra   [movableGPUs]int
	log     []string
	count   int
	orders  sync.WaitGroup
}

const (
	stormMiB  = 24 // of each program: all fit, until the highest allocates more
	extraMiB  = 16
	slabsMiB  = 3 * 64          // host memory for moves, at most, on each GPU
	stormSlow = 2 * time.Minute // every program makes progress again within
)

func newStorm(t testing.TB, seed uint64) *storm {
	t.Helper()
	s := &storm{movables: newMovables(t), random: rand.New(rand.NewPCG(seed, 1))}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("seed %d, the last of %d faults:\n%s", seed, s.count, strings.Join(s.log[max(0, len(s.log)-25):], "\n"))
			for _, h := range s.everybody() {
				h.lastWords()
			}
		}
	})
	for range 2 {
		s.holders = append(s.holders, s.hold(0, stormMiB).ready())
	}
	s.highest = s.hold(10, 8).ready()
	s.settle()
	return s
}

// everybody returns all programs.
func (s *storm) everybody() []*holder { return append(append([]*holder(nil), s.holders...), s.highest) }

func (s *storm) between(low, high int) int { return low + s.random.IntN(high-low+1) }

func (s *storm) pause(low, high int) {
	time.Sleep(time.Duration(s.between(low*1000, high*1000)) * time.Microsecond)
}

func (s *storm) note(format string, a ...any) {
	s.count++
	s.log = append(s.log, fmt.Sprintf("%d %s", s.count, fmt.Sprintf(format, a...)))
}

// later gives an order and does not wait for its end, which may be an error.
func (s *storm) later(verb string, h *holder) {
	pid := strconv.Itoa(h.pid())
	s.orders.Go(func() { _, _ = s.xsched(verb, pid) })
}

func (s *storm) any() *holder { return s.holders[s.random.IntN(len(s.holders))] }

// faults are the kinds, each as often as it is listed.
func (s *storm) faults() []func() {
	return []func(){
		s.moveOne, s.moveOne, s.moveOne, s.moveBoth, s.moveBoth, s.stepFails, s.stepFails, s.stepSlow, s.stepSlow, s.noRoom,
		s.daemonKilled, s.daemonKilled, s.daemonStopped, s.programStopped, s.programKilled, s.allocate, s.allocate, s.hostFull, s.guardianKilled,
	}
}

func (s *storm) inject() {
	all := s.faults()
	all[s.random.IntN(len(all))]()
	s.pause(0, 60)
}

func (s *storm) moveOne() {
	verb := []string{"evict", "restore"}[s.random.IntN(2)]
	h := s.any()
	s.note("%s %d", verb, h.pid())
	s.later(verb, h)
}

func (s *storm) moveBoth() {
	verbs := []string{"evict", "restore"}
	k := s.random.IntN(2)
	s.note("%s %d, %s %d", verbs[k], s.holders[0].pid(), verbs[1-k], s.holders[1].pid())
	s.later(verbs[k], s.holders[0])
	s.later(verbs[1-k], s.holders[1])
}

func (s *storm) set(fault string) {
	s.note("%s", fault)
	if err := s.gpu.SetFault(fault); err != nil {
		s.t.Fatal(err)
	}
}

func (s *storm) stepFails() {
	op := []string{"create", "map", "copy", "pin"}[s.random.IntN(4)]
	every := []string{"", "+"}[s.random.IntN(2)]
	s.set(fmt.Sprintf("step:%s:%d:%d%s", op, s.any().pid(), s.between(1, 12), every))
	s.moveOne()
}

func (s *storm) stepSlow() {
	op := []string{"create", "map", "copy", "pin", "unmap"}[s.random.IntN(5)]
	s.set(fmt.Sprintf("step:%s:%d:%d+:%d", op, s.any().pid(), s.between(1, 6), s.between(2, 40)))
	s.moveOne()
}

func (s *storm) noRoom() {
	s.set(fmt.Sprintf("no-memory:%d", s.random.IntN(movableGPUs)))
	s.moveOne()
	s.pause(20, 200)
	s.clear()
}

func (s *storm) clear() {
	if err := s.gpu.ClearFaults(); err != nil {
		s.t.Fatal(err)
	}
}

func (s *storm) daemonKilled() {
	s.note("daemon killed")
	s.later("evict", s.any())
	s.pause(0, 50)
	s.killDaemon()
	s.pause(0, 300)
	s.startDaemon()
}

func (s *storm) daemonStopped() {
	s.note("daemon stopped")
	_ = s.serve.Process.Signal(syscall.SIGSTOP)
	s.pause(50, 400)
	_ = s.serve.Process.Signal(syscall.SIGCONT)
}

func (s *storm) programStopped() {
	h := s.any()
	s.note("%d stopped", h.pid())
	_ = h.cmd.Process.Signal(syscall.SIGSTOP)
	s.later("evict", h)
	s.pause(20, 200)
	_ = h.cmd.Process.Signal(syscall.SIGCONT)
}

func (s *storm) programKilled() {
	k := s.random.IntN(len(s.holders))
	old := s.holders[k]
	s.note("%d killed", old.pid())
	s.later("evict", old)
	s.pause(0, 40)
	s.sound(old.pid())
	_ = old.cmd.Process.Kill()
	_ = old.wait(soon)
	s.clear() // the next one starts without faults, and fits
	eventually(s.t, soon, "the device frees the memory of a killed program", func() bool { return s.on(old, 0)+s.on(old, 1) == 0 })
	for gpu := range movableGPUs {
		for s.extra[gpu] > 0 {
			s.free(gpu)
		}
	}
	s.holders[k] = s.hold(0, stormMiB)
	s.holders[k].expect("R", stormSlow)
	s.holders[k].send("loop")
}

// allocate lets the highest program allocate or free.
func (s *storm) allocate() {
	gpu := s.random.IntN(movableGPUs)
	if s.extra[gpu] > 0 {
		s.free(gpu)
		return
	}
	s.note("the highest allocates on GPU %d", gpu)
	s.highest.send(fmt.Sprintf("alloc %d %d", gpu, extraMiB))
	if strings.HasPrefix(s.highest.expect("A", stormSlow), "A 0 ") {
		s.extra[gpu]++
	}
}

func (s *storm) free(gpu int) {
	s.note("the highest frees on GPU %d", gpu)
	s.highest.send(fmt.Sprintf("free %d", gpu))
	if line := s.highest.expect("F", stormSlow); line != "F 0" {
		s.t.Errorf("free: %s", line)
	}
	s.extra[gpu]--
}

// hostFull gives moves less host memory than they need, for a while.
func (s *storm) hostFull() {
	s.note("host memory full")
	s.killDaemon()
	s.startDaemon("--host-memory", "4MiB")
	s.moveOne()
	s.pause(20, 200)
	s.killDaemon()
	s.startDaemon()
}

func (s *storm) guardianKilled() {
	stats, err := s.client.Stats(context.Background())
	if err == nil && stats.Guardian.PID != 0 {
		s.note("guardian killed")
		_ = syscall.Kill(stats.Guardian.PID, syscall.SIGKILL)
	}
}

// settle ends all faults. Everybody has all memory again and makes progress, and nothing was lost.
func (s *storm) settle() {
	s.t.Helper()
	s.clear()
	s.orders.Wait()
	for gpu := range movableGPUs {
		for s.extra[gpu] > 0 {
			s.free(gpu)
		}
	}
	// A new daemon gives kept orders again when their program joins it, also if its memory is back already.
	for _, h := range s.holders {
		eventually(s.t, stormSlow, fmt.Sprintf("restore %d", h.pid()), func() bool {
			_, err := s.order("restore", h)
			return err == nil
		})
	}
	for _, h := range s.everybody() {
		eventually(s.t, stormSlow, fmt.Sprintf("the memory of %d returns", h.pid()), func() bool { return s.isBack(h) })
		at := nowNS()
		eventually(s.t, stormSlow, fmt.Sprintf("progress of %d", h.pid()), func() bool { return h.iterationsAfter(at) >= 5 })
		s.sound(h.pid())
		if used := s.on(h, 0) + s.on(h, 1); used > movableGPUs*(h.mib+leftMiB) {
			s.t.Errorf("%d has %d MiB on the devices, want %d", h.pid(), used, movableGPUs*h.mib)
		}
	}
}

// hostMiB is the host memory of a process, with what it shares with the device.
func hostMiB(t testing.TB, pid int) int {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) == 3 && f[0] == "VmRSS:" {
			kib, _ := strconv.Atoi(f[1])
			return kib >> 10
		}
	}
	t.Fatal("no VmRSS")
	return 0
}

// finish ends all programs; each compares all of its memory.
func (s *storm) finish() {
	s.t.Helper()
	s.settle()
	for _, h := range s.everybody() {
		// Its blocks, three slabs of the arena on each GPU, and itself.
		if mib := hostMiB(s.t, h.pid()); mib > movableGPUs*slabsMiB+h.mib*movableGPUs+100 {
			s.t.Errorf("%d has %d MiB of host memory", h.pid(), mib)
		}
		s.ends(h)
	}
	s.empty()
}

// rage injects faults until a function says that it is enough.
func rage(t *testing.T, seed uint64, enough func(faults int) bool) {
	t.Helper()
	s := newStorm(t, seed)
	for !enough(s.count) && !t.Failed() {
		for range 10 {
			s.inject()
		}
		s.settle()
	}
	s.finish()
	t.Logf("%d faults", s.count)
}

func TestMovableFaults(t *testing.T) {
	end := time.Now().Add(10 * time.Second)
	rage(t, uint64(end.UnixNano()), func(int) bool { return time.Now().After(end) })
}

// XSCHED_SEED repeats a run, XSCHED_FAULTS sets the number of faults.
func TestLongMovableFaults(t *testing.T) {
	number := func(name string, value int) int {
		if n, err := strconv.Atoi(os.Getenv(name)); err == nil {
			return n
		}
		return value
	}
	want := number("XSCHED_FAULTS", 150)
	rage(t, uint64(number("XSCHED_SEED", 1)), func(faults int) bool { return faults >= want })
}

// A daemon that is away for a minute changes nothing: what was away returns by itself, and is managed again.
func TestLongMovableWithoutDaemon(t *testing.T) {
	s := newStorm(t, 1)
	if out, err := s.order("evict", s.holders[0]); err != nil {
		t.Fatalf("evict: %v\n%s", err, out)
	}
	s.killDaemon()
	s.awaitBack(s.holders[0])
	time.Sleep(time.Minute)
	for _, h := range s.everybody() {
		h.iterates(20)
	}
	s.startDaemon()
	s.waitLevel(s.holders[0].pid(), 1)
	s.finish()
}
