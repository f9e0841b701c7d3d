// SPDX-License-Identifier: Apache-2.0

package nvidia

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"xsched/internal/driver"
	"xsched/internal/driver/nvidia/abi"
	"xsched/internal/model"
)

// refusing answers one command with a status.
type refusing struct {
	*fakeRM
	cmd    uint32
	status Status
}

func (r *refusing) Ioctl(ctx context.Context, f *File, request uint32, arg, params []byte) error {
	if cmd := uint32(arg[8]) | uint32(arg[9])<<8 | uint32(arg[10])<<16 | uint32(arg[11])<<24; cmd == r.cmd {
		r.calls[cmd]++
		arg[28], arg[29], arg[30], arg[31] = byte(r.status), byte(r.status>>8), 0, 0
		return nil
	}
	return r.fakeRM.Ioctl(ctx, f, request, arg, params)
}

func TestProbedLevels(t *testing.T) {
	const none = 0
	for name, c := range map[string]struct {
		cmd    uint32
		status Status
		level  model.Level
		slices bool
		words  string
		again  bool // no evidence was recorded
	}{
		"all works":            {none, 0, model.LevelInterrupt, true, "", false},
		"no stop":              {abi.NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS, 0x56, model.LevelBlock, true, "does not stop channels", false},
		"no right to stop":     {abi.NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS, NV_ERR_INSUFFICIENT_PERMISSIONS, model.LevelBlock, true, "insufficient permissions", false},
		"another layout":       {abi.NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS, 0x3A, model.LevelBlock, true, "invalid parameter struct", false},
		"no slices":            {abi.NVA06C_CTRL_CMD_GET_TIMESLICE, 0x56, model.LevelInterrupt, false, "does not report timeslices", false},
		"busy now":             {abi.NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS, NV_ERR_BUSY_RETRY, model.LevelBlock, false, "being probed", true},
		"gone under the probe": {abi.NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS, NV_ERR_INVALID_OBJECT_HANDLE, model.LevelBlock, false, "being probed", true},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			fake := newFakeRM()
			d := gated(&refusing{fake, c.cmd, c.status}, measuredVersion)
			if err := d.CacheLevels(dir); err != nil {
				t.Fatal(err)
			}
			s := NewObjects(d, Limits{Clients: 4, Objects: 300}, &driver.Metrics{})
			defer s.Close()
			fake.newContext(t, s, 0xc1d00001, fakeGPU, 4)
			caps, err := s.Resolve(context.Background())
			if (err != nil) != c.again {
				t.Errorf("error %v", err)
			}
			got := caps[fakeDevice]
			if got.MaxLevel != c.level || got.Slices != c.slices || !strings.Contains(got.Reason, c.words) || (c.words == "") != (got.Reason == "") {
				t.Errorf("%+v", got)
			}
			// A second Resolve must not probe again.
			before := fake.calls[abi.NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS]
			_, _ = s.Resolve(context.Background())
			if again := fake.calls[abi.NV2080_CTRL_CMD_FIFO_DISABLE_CHANNELS] > before; again != c.again {
				t.Errorf("asked again: %v", again)
			}
			for h := uint32(100); h < 104; h++ {
				if o := fake.object(0xc1d00001, h); o.stopped != "" {
					t.Errorf("the probe stopped channel %d", h)
				}
			}
			// The next daemon loads positive verdicts and probes the negative ones again.
			next := gated(fake, measuredVersion)
			if err := next.CacheLevels(dir); err != nil {
				t.Fatal(err)
			}
			_, known := next.Verdict(fakeDevice)
			if works := !c.again && c.level == model.LevelInterrupt && c.slices; known != works {
				t.Errorf("known to the next daemon: %v", known)
			}
			other := gated(fake, virtualVersion)
			if err := other.CacheLevels(dir); err != nil {
				t.Fatal(err)
			}
			if _, known := other.Verdict(fakeDevice); known {
				t.Error("used another driver's verdict")
			}
		})
	}
}

func TestBadLevelCache(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "levels-"+measuredVersion+".json"), []byte("{nonsense"), 0o644); err != nil {
		t.Fatal(err)
	}
	d := gated(nil, measuredVersion)
	if d.CacheLevels(dir) == nil {
		t.Error("accepted an invalid file")
	}
	if err := d.learn(fakeDevice, 1, Verdict{Stop: true, Slices: true}); err != nil {
		t.Error(err)
	}
	again := gated(nil, measuredVersion)
	if err := again.CacheLevels(dir); err != nil {
		t.Error(err)
	}
	if v, ok := again.Verdict(fakeDevice); !ok || !v.Stop {
		t.Error("the verdict is not in the file")
	}
}

// useGPU gives a process below a root an open file of the driver, which is /dev/null there.
func useGPU(t *testing.T, root string, pid int) {
	t.Helper()
	dir := filepath.Join(root, "proc", strconv.Itoa(pid))
	for name, text := range map[string]string{
		filepath.Join(root, "proc", "devices"): "Character devices:\n  1 nvidia-frontend\n  5 tty\n\nBlock devices:\n259 blkext\n",
		filepath.Join(dir, "fdinfo", "3"):      "pos:\t0\nflags:\t02100002\nmnt_id:\t15\n",
	} {
		_ = os.MkdirAll(filepath.Dir(name), 0o755)
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	_ = os.MkdirAll(filepath.Join(dir, "fd"), 0o755)
	if err := os.Symlink("/dev/null", filepath.Join(dir, "fd", "3")); err != nil {
		t.Fatal(err)
	}
}

// TestForgedMPS: a process with the service's name counts only if it has opened a file of the driver.
func TestForgedMPS(t *testing.T) {
	for name, change := range map[string]func(dir string) error{
		"no file":      func(dir string) error { return os.Remove(dir + "/fd/3") },
		"no files":     func(dir string) error { return os.RemoveAll(dir + "/fd") },
		"closed":       func(dir string) error { return os.Remove(dir + "/fdinfo/3") },
		"path only":    func(dir string) error { return os.WriteFile(dir+"/fdinfo/3", []byte("flags:\t012100000\n"), 0o644) },
		"another":      func(dir string) error { return relink(dir+"/fd/3", "/dev/ptmx") },
		"regular file": func(dir string) error { return relink(dir+"/fd/3", filepath.Join(dir, "nvidia0")) },
	} {
		root := t.TempDir()
		dir := filepath.Join(root, "proc", "42")
		useGPU(t, root, 42)
		for file, text := range map[string]string{"comm": "nvidia-cuda-mps\n", "cmdline": "nvidia-cuda-mps-server\x00", "nvidia0": ""} {
			if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if !(System{root}).MPS().Running() {
			t.Fatal("a server with the GPU does not count")
		}
		if err := change(dir); err != nil {
			t.Fatal(err)
		}
		if m := (System{root}).MPS(); m.Running() {
			t.Errorf("%s: %+v", name, m)
		}
	}
}

func relink(link, to string) error {
	if err := os.Remove(link); err != nil {
		return err
	}
	return os.Symlink(to, link)
}

// Under MPS a client has no channels of its own, and the reason must say so.
func TestMPSReason(t *testing.T) {
	root := t.TempDir()
	write := func(name, text string) {
		_ = os.MkdirAll(filepath.Join(root, filepath.Dir(name)), 0o755)
		if err := os.WriteFile(filepath.Join(root, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("proc/1/comm", "init\n")
	fake := newFakeRM()
	d := gated(fake, measuredVersion)
	byRoot := false
	d.mps = &mpsWatch{system: System{Root: root}, official: func(pid int) bool { return pid == 42 && byRoot }}
	s := NewObjects(d, Limits{Clients: 4, Objects: 300}, &driver.Metrics{})
	defer s.Close()
	_, _ = s.Resolve(context.Background())
	if why, _ := s.Why(); strings.Contains(why, "MPS") {
		t.Error(why)
	}
	write("proc/42/comm", "nvidia-cuda-mps\n")
	write("proc/42/cmdline", "/usr/bin/nvidia-cuda-mps-server\x00")
	useGPU(t, root, 42)
	d.mps.asked = time.Time{}
	fd, _ := unix.MemfdCreate("fake", unix.MFD_CLOEXEC)
	fake.owner[7], fake.clients[7] = inode(fd), map[uint32]*fakeObject{2: {kind: kindSub, gpu: fakeGPU}}
	if err := s.AddClient(7, fd); err != nil {
		t.Fatal(err)
	}
	_ = s.Alloc(7, 7, 1, abi.NV01_DEVICE_0)
	_ = s.Alloc(7, 1, 2, abi.NV20_SUBDEVICE_0)
	caps, err := s.Resolve(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	want := "MPS: the channels belong to the MPS server (pid 42)"
	if c := caps[fakeDevice]; c.MaxLevel != model.LevelBlock || c.Reason != want {
		t.Errorf("%+v", c)
	}
	if why, _ := s.Why(); why != want || d.MPSReason() != want {
		t.Errorf("%q, %q", why, d.MPSReason())
	}
	// Any user can name a process like that. It must not exempt programs from the proof.
	verifies := (&session{Objects: s}).Verifies
	if !verifies(fakeDevice) {
		t.Error("a process of another user ends the proof of devices")
	}
	byRoot, d.mps.asked = true, time.Time{}
	if d.MPSReason(); verifies(fakeDevice) {
		t.Error("clients of MPS need a proof that they can't give")
	}
}

// walkFake returns a walk on a fake driver with one file.
func walkFake(t *testing.T) (*fakeRM, *walk, *int) {
	t.Helper()
	fake := newFakeRM()
	fd, err := unix.MemfdCreate("fake", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	d := &Driver{transport: fake, ungated: true}
	s := NewObjects(d, Limits{Clients: 4, Objects: 300}, &driver.Metrics{})
	s.everyChannel = true
	t.Cleanup(s.Close)
	f := NewFile(fd)
	t.Cleanup(func() { _ = f.Close() })
	return fake, &walk{driver: d, files: []*File{f}, into: s, budget: searchTime}, &fd
}

// put adds a client with a context to the walk's file.
func (r *fakeRM) put(fd int, client, base, gpu uint32) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.owner[client] = inode(fd)
	if r.clients[client] == nil {
		r.clients[client] = map[uint32]*fakeObject{}
	}
	for i, o := range []*fakeObject{{kind: kindSub, gpu: gpu}, {kind: kindGroup, slice: 2048}, {kind: kindChannel, gpu: gpu}, {kind: kindChannel, gpu: gpu}} {
		r.clients[client][base+uint32(i)] = o
	}
}

func TestWalkFindsOldAndWrappedClients(t *testing.T) {
	for name, index := range map[string]uint32{
		"new": 19990, "the first": 0, "from before the count began again": maxClients - 3, "started while we look": 20010,
	} {
		t.Run(name, func(t *testing.T) {
			fake, w, fd := walkFake(t)
			fake.put(*fd, firstClient+index, firstHandle+5, fakeGPU)
			if err := w.from(context.Background(), firstClient+20000); err != nil {
				t.Fatal(err)
			}
			caps, err := w.into.Resolve(context.Background())
			if err != nil || caps[fakeDevice].MaxLevel != model.LevelInterrupt {
				t.Errorf("%+v %v after %d numbers", caps, err, w.tried)
			}
		})
	}
}

func TestWalkEndsInTime(t *testing.T) {
	_, w, _ := walkFake(t)
	w.budget = 5 * time.Millisecond
	start := time.Now()
	err := w.from(context.Background(), firstClient+maxClients-100)
	if !errors.Is(err, ErrSearch) || !strings.Contains(err.Error(), "client numbers") {
		t.Error(err)
	}
	if took := time.Since(start); took > 10*time.Second {
		t.Errorf("took %v", took)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := w.from(ctx, firstClient+100); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if w.from(context.Background(), 5) == nil {
		t.Error("accepted a client number out of range")
	}
}

// Handles may be far apart and interleaved with other objects.
func TestWalkPassesGaps(t *testing.T) {
	fake, w, fd := walkFake(t)
	fake.put(*fd, firstClient+3, firstHandle+200, fakeGPU)
	if err := w.from(context.Background(), firstClient+9); err != nil {
		t.Fatal(err)
	}
	if caps, err := w.into.Resolve(context.Background()); err != nil || caps[fakeDevice].MaxLevel != model.LevelInterrupt {
		t.Errorf("%+v %v", caps, err)
	}
	if n := fake.calls[abi.NV2080_CTRL_CMD_GPU_GET_ID]; n > 700 {
		t.Errorf("%d questions", n)
	}
}

// The walk leaves channels alone that two GPUs claim, and reports it.
func TestWalkLeavesAmbiguousChannelsAlone(t *testing.T) {
	fake, w, fd := walkFake(t)
	fake.put(*fd, firstClient+3, firstHandle+1, fakeGPU)
	fake.put(*fd, firstClient+3, firstHandle+11, 2<<8)
	if err := w.from(context.Background(), firstClient+9); err != nil {
		t.Fatal(err)
	}
	if w.mine != 0 || w.mixed != 1 || !strings.Contains(w.nothing("").Error(), "several GPUs") {
		t.Errorf("%d found, %d mixed, %v", w.mine, w.mixed, w.nothing(""))
	}
}

// A process with the service's name is not the service.
func TestOfficialMPS(t *testing.T) {
	if officialMPS(os.Getpid()) {
		t.Error("this test is the service")
	}
	file := filepath.Join(t.TempDir(), "nvidia-cuda-mps-server")
	sleep, err := os.ReadFile("/bin/sleep")
	if err != nil {
		t.Skip(err)
	}
	if err := os.WriteFile(file, sleep, 0o755); err != nil { //nolint:gosec // a program
		t.Fatal(err)
	}
	start := func(file string, as *syscall.SysProcAttr) int {
		t.Helper()
		cmd := exec.Command(file, "60")
		cmd.SysProcAttr = as
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
		return cmd.Process.Pid
	}
	if !officialMPS(start(file, nil)) {
		t.Error("the service of the daemon's user does not count")
	}
	link := file + "-link"
	if err := os.Symlink("/bin/sleep", link); err != nil {
		t.Fatal(err)
	}
	if officialMPS(start(link, nil)) {
		t.Error("a link to another program counts")
	}
	if os.Geteuid() != 0 {
		return
	}
	for _, dir := range []string{filepath.Dir(file), filepath.Dir(filepath.Dir(file))} {
		if err := os.Chmod(dir, 0o755); err != nil { //nolint:gosec // another user starts it
			t.Fatal(err)
		}
	}
	if officialMPS(start(file, &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 1000, Gid: 1000}})) {
		t.Error("another user's program counts")
	}
}
