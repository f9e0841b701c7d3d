// SPDX-License-Identifier: Apache-2.0

package hub

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"xsched/internal/engine"
	"xsched/internal/model"
	"xsched/internal/wire"
)

// TestMain also is the program of a client that is to be killed.
func TestMain(m *testing.M) {
	if path := os.Getenv("HUB_TEST_CLIENT"); path != "" {
		os.Exit(clientProcess(path))
	}
	os.Exit(m.Run())
}

// clientProcess joins, leaves its connection to a child too, and waits to be killed.
func clientProcess(path string) int {
	c, err := dial(path, wire.Hello{PID: uint32(os.Getpid()), Hint: wire.Hint{Said: wire.HintLevel, Level: wire.LevelInterrupt}})
	if err != nil {
		fmt.Println(err)
		return 1
	}
	packet, _ := wire.EncodeRM([]wire.RMEvent{{Kind: wire.RMClient, Client: 7, Object: 7}})
	fd, _ := unix.MemfdCreate("control", unix.MFD_CLOEXEC)
	_, _, _ = c.conn.WriteMsgUnix(packet, unix.UnixRights(fd), nil)
	f, _ := c.conn.File()
	sleep := exec.Command("sleep", "30")
	sleep.ExtraFiles = []*os.File{f}
	if err := sleep.Start(); err != nil {
		fmt.Println(err)
		return 1
	}
	fmt.Println(sleep.Process.Pid)
	time.Sleep(30 * time.Second)
	return 0
}

func TestGateFollowsPriority(t *testing.T) {
	h := startHub(t, func(c *Config, _ *engine.Config) { strangers(c) })
	low, high := h.join(t, -10, wire.LevelBlock), h.join(t, 10, wire.LevelBlock)
	low.queue(0)
	high.queue(0)
	await(t, "queues are known", func() bool { return h.Stats().Queues == 2 })
	low.busy(0, true)
	high.busy(0, true)
	await(t, "low is held", func() bool { return low.held(0) })
	if high.held(0) {
		t.Error("high is held")
	}
	high.busy(0, false)
	await(t, "low runs", func() bool { return !low.held(0) })
	high.busy(0, true)
	await(t, "low is held again", func() bool { return low.held(0) })
	high.close()
	await(t, "low runs when high is gone", func() bool { return !low.held(0) })
	st := h.Stats()
	if n, _, _ := st.BusyToDecision.Quantiles(0.5); n < 3 {
		t.Errorf("%d latencies recorded", n)
	}
	if h.metrics.GateHolds.Load() < 2 || st.Scheduling == "" {
		t.Errorf("holds %d, scheduling %q", h.metrics.GateHolds.Load(), st.Scheduling)
	}
}

func TestHardwareIsUsedWhenObjectsArrive(t *testing.T) {
	h := startHub(t, func(c *Config, e *engine.Config) { strangers(c); e.Mode = model.ModeSuspend })
	low, high := h.join(t, -10, wire.LevelAuto), h.join(t, 10, wire.LevelAuto)
	low.queue(0)
	high.queue(0)
	low.busy(0, true)
	high.busy(0, true)
	await(t, "low is held at the gate first", func() bool { return low.held(0) })
	v, err := h.Sessions(context.Background())
	if err != nil || v[0].Queues[0].Level != model.LevelBlock || v[0].Queues[0].Reason == "" {
		t.Fatalf("%+v %v", v, err)
	}
	low.handOver(t)
	await(t, "level is raised: hardware stops, gate opens", func() bool {
		return h.hardware(0).now().Suspend == model.LevelInterrupt && !low.held(0)
	})
	if e, d := low.page.Lease(); e == 0 || d == 0 {
		t.Error("no lease in the page")
	}
	_, d1 := low.page.Lease()
	await(t, "deadline moves", func() bool { _, d := low.page.Lease(); return d > d1 })
	// The client says it had to help itself: the suspension is made anew.
	e1, _ := low.page.Lease()
	low.page.SetRecovered(e1)
	await(t, "a new epoch", func() bool {
		e, _ := low.page.Lease()
		return e > e1 && h.hardware(0).now().Suspend == model.LevelInterrupt
	})
	high.busy(0, false)
	await(t, "low runs", func() bool { return h.hardware(0).now().Suspend == 0 })
	await(t, "lease ends", func() bool { _, d := low.page.Lease(); return d == 0 })
}

func TestHeldByHand(t *testing.T) {
	h := startHub(t, nil)
	c := h.join(t, 0, wire.LevelAuto)
	c.handOver(t)
	c.queue(0)
	c.busy(0, true)
	await(t, "level 3", func() bool {
		v, _ := h.Sessions(context.Background())
		return len(v[0].Queues) == 1 && v[0].Queues[0].Level == model.LevelInterrupt
	})
	if err := h.SetHeld(context.Background(), os.Getpid(), true); err != nil {
		t.Fatal(err)
	}
	await(t, "suspended", func() bool { return h.hardware(0).now().Suspend == model.LevelInterrupt })
	if err := h.SetHeld(context.Background(), os.Getpid(), false); err != nil {
		t.Fatal(err)
	}
	await(t, "resumed", func() bool { return h.hardware(0).now().Suspend == 0 })
	if err := h.SetHeld(context.Background(), 1, true); !errors.Is(err, ErrUnknownPID) {
		t.Errorf("unknown pid: %v", err)
	}
}

// The end of a client closes its files at once, also while the engine is blocked.
func TestEndWhileWedged(t *testing.T) {
	h := startHub(t, nil)
	c := h.join(t, 0, wire.LevelAuto)
	c.handOver(t)
	c.queue(0)
	await(t, "file there", func() bool {
		h.hardware(0).mu.Lock()
		defer h.hardware(0).mu.Unlock()
		return len(h.hardware(0).files) == 1
	})
	if err := h.Wedge(context.Background(), 500*time.Millisecond); err != nil {
		t.Fatal(err)
	}
	time.Sleep(30 * time.Millisecond)
	beat := c.page.LastHeartbeat()
	_ = c.conn.Close()
	start := time.Now()
	await(t, "files closed", h.hardware(0).closed.Load)
	if d := time.Since(start); d > 300*time.Millisecond {
		t.Errorf("closed after %v: the engine was waited for", d)
	}
	if c.page.LastHeartbeat() != beat {
		t.Error("a heartbeat although the engine was blocked")
	}
	await(t, "session forgotten", func() bool { return h.count() == 0 })
}

func TestHeartbeat(t *testing.T) {
	h := startHub(t, nil)
	c := h.join(t, 0, 0)
	if now := testClock.Now(); now.Sub(c.page.LastHeartbeat()) > time.Second {
		t.Error("no heartbeat before the welcome")
	}
	last := c.page.LastHeartbeat()
	for range 3 {
		await(t, "next heartbeat", func() bool { return c.page.LastHeartbeat() > last })
		last = c.page.LastHeartbeat()
	}
}

// kill -9 of a process whose socket somebody else still holds: the pidfd tells.
func TestKilledProcess(t *testing.T) {
	h := startHub(t, nil)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), "HUB_TEST_CLIENT="+h.path)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, _ := bufio.NewReader(out).ReadString('\n')
	var sleeper int
	if _, err := fmt.Sscan(line, &sleeper); err != nil {
		t.Fatalf("client says %q", line)
	}
	defer func() { _ = unix.Kill(sleeper, unix.SIGKILL) }()
	await(t, "file there", func() bool {
		h.hardware(0).mu.Lock()
		defer h.hardware(0).mu.Unlock()
		return len(h.hardware(0).files) == 1
	})
	_ = cmd.Process.Kill()
	start := time.Now()
	await(t, "files closed", h.hardware(0).closed.Load)
	t.Logf("closed %v after kill -9", time.Since(start))
	_ = cmd.Wait()
}

// A target that never answers holds up neither the loop nor the others, nor the end.
func TestStuckDevice(t *testing.T) {
	h := startHub(t, func(c *Config, e *engine.Config) { strangers(c); e.Mode = model.ModeSuspend })
	stuck, low, high := h.join(t, -10, 0), h.join(t, -10, 0), h.join(t, 10, 0)
	hang := make(chan struct{})
	h.hardware(0).hang = hang
	for _, c := range []*client{stuck, low, high} {
		c.handOver(t)
		c.queue(0)
	}
	await(t, "levels", func() bool {
		v, _ := h.Sessions(context.Background())
		n := 0
		for _, s := range v {
			if len(s.Queues) == 1 && s.Queues[0].Level == model.LevelInterrupt {
				n++
			}
		}
		return n == 3
	})
	stuck.busy(0, true)
	low.busy(0, true)
	high.busy(0, true)
	await(t, "the other low stops", func() bool { return h.hardware(1).now().Suspend != 0 })
	await(t, "stuck one shows", func() bool {
		for _, s := range h.Stats().Targets {
			if s.StuckSince != 0 {
				return true
			}
		}
		return false
	})
	high.busy(0, false)
	await(t, "the other low runs", func() bool { return h.hardware(1).now().Suspend == 0 })
	_ = stuck.conn.Close()
	await(t, "stuck one's files closed", h.hardware(0).closed.Load)
	close(hang)
}

func TestVersionMismatchNamesBoth(t *testing.T) {
	h := startHub(t, nil)
	conn, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: h.path, Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	b := wire.EncodeHello(wire.Hello{})
	b[4] = 99
	_, _ = conn.Write(b)
	_, err = welcome(conn)
	if err == nil || !strings.Contains(err.Error(), "99") || !strings.Contains(err.Error(), fmt.Sprint(wire.Version)) {
		t.Errorf("got %v", err)
	}
	if h.Stats().Refused["version"] != 1 {
		t.Error("not counted")
	}
}

// Clients that send rubbish end by themselves; one that behaves notices nothing.
func TestGarbageClients(t *testing.T) {
	h := startHub(t, nil)
	good := h.join(t, 0, wire.LevelBlock)
	good.queue(0)
	before := openFDs(t)
	rng := rand.New(rand.NewPCG(1, 2))
	rm, _ := wire.EncodeRM([]wire.RMEvent{{Kind: wire.RMAlloc}, {Kind: wire.RMFree}})
	two, _ := wire.EncodeRM([]wire.RMEvent{{Kind: wire.RMClient, Client: 1}})
	for i := range 60 {
		conn, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: h.path, Net: "unixpacket"})
		if err != nil {
			t.Fatal(err)
		}
		if i%2 == 0 {
			_, _ = conn.Write(wire.EncodeHello(wire.Hello{}))
			if c, err := welcome(conn); err == nil {
				defer c.page.Release()
				defer func() { _ = unix.Close(c.bell) }()
			}
		}
		null, _ := unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		switch i % 6 {
		case 0, 1:
			b := make([]byte, rng.IntN(5000))
			for j := range b {
				b[j] = byte(rng.Uint32())
			}
			_, _ = conn.Write(b)
		case 2, 3: // descriptors where none belong
			_, _, _ = conn.WriteMsgUnix(rm, unix.UnixRights(null, null), nil)
		case 4: // more than a frame may carry
			_, _, _ = conn.WriteMsgUnix(two, unix.UnixRights(null, null, null, null), nil)
		case 5: // cut
			_, _ = conn.Write(two[:10])
		}
		_ = unix.Close(null)
		_ = conn.SetReadDeadline(time.Now().Add(5 * time.Second))
		for {
			if _, fds, err := receive(conn, make([]byte, 4096)); err != nil {
				if errors.Is(err, os.ErrDeadlineExceeded) {
					t.Errorf("garbage %d was not answered with an end", i)
				}
				closeFDs(fds)
				break
			}
		}
		_ = conn.Close()
	}
	await(t, "only the good one left", func() bool { return h.count() == 1 })
	await(t, "no descriptor left", func() bool { return openFDs(t) <= before+30 }) // 30 doorbells are the test's
	good.busy(0, true)
	await(t, "the good one is served", func() bool {
		v, _ := h.Sessions(context.Background())
		return v[0].Queues[0].Busy
	})
}

// A client writes rubbish into its page and rings all the time; another's
// decisions still come.
func TestGarbagePage(t *testing.T) {
	h := startHub(t, func(c *Config, _ *engine.Config) { strangers(c) })
	bad := h.join(t, 5, 0)
	low, high := h.join(t, -10, wire.LevelBlock), h.join(t, 10, wire.LevelBlock)
	done := make(chan struct{})
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		rng := rand.New(rand.NewPCG(3, 4))
		for {
			select {
			case <-done:
				return
			default:
			}
			for range 50 {
				i := rng.IntN(wire.MaxQueues)
				bad.page.CreateQueue(i, rng.Uint32(), rng.Uint32())
				bad.page.SetBusy(i, rng.IntN(2) == 0, model.Time(rng.Int64()))
				if rng.IntN(3) == 0 {
					bad.page.DestroyQueue(i)
				}
			}
			bad.page.SetRecovered(rng.Uint64())
			bad.ring()
		}
	}()
	low.queue(0)
	high.queue(0)
	low.busy(0, true)
	for range 5 {
		high.busy(0, true)
		await(t, "low is held", func() bool { return low.held(0) })
		high.busy(0, false)
		await(t, "low runs", func() bool { return !low.held(0) })
	}
	close(done)
	<-stopped
}

// A client that floods its socket is slowed down; others are served.
func TestFlood(t *testing.T) {
	h := startHub(t, nil)
	bad, good := h.join(t, 0, 0), h.join(t, 0, 0)
	packet, _ := wire.EncodeRM([]wire.RMEvent{{Kind: wire.RMTimeslice, Value: 1}})
	_ = bad.conn.SetWriteDeadline(time.Now().Add(300 * time.Millisecond))
	sent := 0
	for {
		if _, err := bad.conn.Write(packet); err != nil {
			break
		}
		sent++
	}
	good.queue(0)
	await(t, "the good one is served", func() bool {
		v, _ := h.Sessions(context.Background())
		return len(v) == 2 && len(v[1].Queues) == 1
	})
	hw := h.hardware(0)
	hw.mu.Lock()
	defer hw.mu.Unlock()
	if len(hw.slices) > frameBurst+frameRate*3 {
		t.Errorf("%d of %d frames were taken at once", len(hw.slices), sent)
	}
}

func TestThousandClientsLeakNothing(t *testing.T) {
	h := startHub(t, nil)
	round := func(n int) {
		for range n {
			c, err := dial(h.path, wire.Hello{PID: 1})
			if err != nil {
				t.Fatal(err)
			}
			c.handOver(t)
			c.queue(0)
			c.busy(0, true)
			c.close()
		}
		await(t, "all forgotten", func() bool { return h.count() == 0 })
	}
	round(50)
	before := openFDs(t)
	round(1000)
	await(t, "no descriptor left", func() bool { return openFDs(t) <= before })
	st := h.Stats()
	if st.SessionsTotal != 1050 || st.Queues != 0 {
		t.Errorf("%+v", st)
	}
}

func TestLimits(t *testing.T) {
	h := startHub(t, func(c *Config, _ *engine.Config) { c.MaxSessionsPerUID = 2; c.UID = 0 })
	_, b := h.join(t, 0, 0), h.join(t, 0, 0)
	if _, err := dial(h.path, wire.Hello{}); err == nil || !strings.Contains(err.Error(), "most of 2 clients") {
		t.Errorf("third client: %v", err)
	}
	_ = b.conn.Close()
	await(t, "place is free", func() bool { return h.count() == 1 })
	await(t, "third joins", func() bool {
		c, err := dial(h.path, wire.Hello{})
		if err == nil {
			t.Cleanup(c.close)
		}
		return err == nil
	})
	if h.mayHave(1000, 5) == "" || h.mayHave(0, 5) != "" || h.mayHave(1000, 0) != "" {
		t.Error("priority rule")
	}
}

// Two users on root's daemon: the other one may not raise itself.
func TestOtherUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root to be two users")
	}
	h := startHub(t, nil)
	_ = os.Chmod(filepath.Dir(h.path), 0o755)
	_ = os.Chmod(h.path, 0o666)
	type result struct {
		c   *client
		err error
	}
	done := make(chan result)
	go func() {
		// Only this thread becomes the other user; it is not unlocked and so ends with the goroutine.
		runtime.LockOSThread()
		const nobody = 65534
		if _, _, e := unix.RawSyscall(unix.SYS_SETRESUID, nobody, nobody, nobody); e != 0 {
			done <- result{err: e}
			return
		}
		c, err := dial(h.path, wire.Hello{Hint: wire.Hint{Said: wire.HintPriority, Priority: 9}})
		done <- result{c, err}
	}()
	r := <-done
	if r.err != nil {
		t.Fatal(r.err)
	}
	defer r.c.close()
	v, err := h.Sessions(context.Background())
	if err != nil || len(v) != 1 || v[0].UID != 65534 || v[0].Hint.Priority != 0 || v[0].PriorityNote == "" {
		t.Errorf("%+v %v", v, err)
	}
}

func TestCloseSetsEverybodyFree(t *testing.T) {
	h := startHub(t, func(c *Config, e *engine.Config) { strangers(c); e.Mode = model.ModeSuspend })
	low, gated, high := h.join(t, -10, 0), h.join(t, -10, wire.LevelBlock), h.join(t, 10, 0)
	low.handOver(t)
	for _, c := range []*client{low, gated, high} {
		c.queue(0)
		c.busy(0, true)
	}
	await(t, "suspended", func() bool { return h.hardware(0).now().Suspend != 0 && gated.held(0) })
	h.Close()
	if h.hardware(0).now() != (model.Desired{Queue: h.hardware(0).now().Queue}) || gated.held(0) {
		t.Error("somebody is still suspended")
	}
	if !h.hardware(0).closed.Load() {
		t.Error("files still open")
	}
	if _, err := os.Lstat(h.path); err == nil {
		t.Error("socket left behind")
	}
}

func TestSecondDaemonAndStaleSocket(t *testing.T) {
	dir, err := os.MkdirTemp("", "hub")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	lock, err := TakeLock(dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := TakeLock(dir); !errors.Is(err, ErrRunning) || !strings.Contains(err.Error(), fmt.Sprintf("pid %d", os.Getpid())) {
		t.Errorf("second daemon: %v", err)
	}
	lock.Release()
	if lock, err = TakeLock(dir); err != nil {
		t.Fatal(err)
	}
	defer lock.Release()

	path := filepath.Join(dir, "s")
	l, err := Listen("unixpacket", path, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Listen("unixpacket", path, 0o600); !errors.Is(err, ErrRunning) {
		t.Errorf("live socket: %v", err)
	}
	l.SetUnlinkOnClose(false)
	_ = l.Close()
	if l, err = Listen("unixpacket", path, 0o600); err != nil {
		t.Errorf("stale socket: %v", err)
	} else {
		_ = l.Close()
	}
	_ = os.WriteFile(path, nil, 0o600)
	if _, err := Listen("unixpacket", path, 0o600); err == nil {
		t.Error("a plain file was replaced")
	}
}

func TestPrepareDir(t *testing.T) {
	base := t.TempDir()
	uid := os.Geteuid()
	dir := filepath.Join(base, "a", "b")
	if err := PrepareDir(dir, uid); err != nil {
		t.Fatal(err)
	}
	want := os.FileMode(0o700)
	if uid == 0 {
		want = 0o755
	}
	_ = os.Chmod(dir, 0o777)
	if err := PrepareDir(dir, uid); err != nil {
		t.Fatal(err)
	}
	if st, _ := os.Stat(dir); st.Mode().Perm() != want {
		t.Errorf("mode %v", st.Mode())
	}
	link := filepath.Join(base, "link")
	_ = os.Symlink(dir, link)
	if err := PrepareDir(link, uid); err == nil {
		t.Error("a link was accepted")
	}
	if err := PrepareDir(dir, uid+1); err == nil {
		t.Error("somebody else's directory was accepted")
	}
	env := map[string]string{"XDG_RUNTIME_DIR": "/run/user/7"}
	get := func(k string) string { return env[k] }
	if d := DefaultDir(7, get); d != "/run/user/7/xsched" {
		t.Error(d)
	}
	if d := DefaultDir(0, get); d != "/run/xsched" {
		t.Error(d)
	}
	delete(env, "XDG_RUNTIME_DIR")
	if d := DefaultDir(7, get); d != "/tmp/xsched-7" {
		t.Error(d)
	}
}

// BenchmarkBusyToDecision measures from an application's idle->busy change to
// the end of the decision about it, with one process that spins beside.
func BenchmarkBusyToDecision(b *testing.B) {
	h := startHub(b, nil)
	spin := exec.Command("sh", "-c", "while :; do :; done")
	if err := spin.Start(); err != nil {
		b.Fatal(err)
	}
	defer func() { _ = spin.Process.Kill(); _ = spin.Wait() }()
	low, high := h.join(b, -10, wire.LevelBlock), h.join(b, 10, wire.LevelBlock)
	low.queue(0)
	high.queue(0)
	low.busy(0, true)
	for b.Loop() {
		high.busy(0, true)
		time.Sleep(200 * time.Microsecond)
		high.busy(0, false)
		time.Sleep(800 * time.Microsecond)
	}
	n, at, top := h.Stats().BusyToDecision.Quantiles(0.5, 0.99)
	b.ReportMetric(float64(at[0].Nanoseconds())/1000, "p50-us")
	b.ReportMetric(float64(at[1].Nanoseconds())/1000, "p99-us")
	b.ReportMetric(float64(top.Nanoseconds())/1000, "max-us")
	_, d, _ := h.Stats().Decision.Quantiles(0.99)
	b.ReportMetric(float64(d[0].Nanoseconds())/1000, "decide-p99-us")
	b.Logf("%d changes, engine thread: %s", n, h.Stats().Scheduling)
}
