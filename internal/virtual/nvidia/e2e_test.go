// SPDX-License-Identifier: Apache-2.0

package vnvidia

import (
	"encoding/binary"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"xsched/internal/driver/nvidia/abi"
	vdevice "xsched/internal/virtual/device"
	gpumodel "xsched/internal/virtual/model"
)

// One tenant computes correct results, and the device accounts for its work.
func TestTenantChecksum(t *testing.T) {
	d := startDevice(t, 2)
	p := d.tenant(nil, "--name", "a", "--kernel-us", "500", "--depth", "2")
	p.say("loop")
	for range 20 {
		p.expect("I")
	}
	p.say("pause")
	p.expect("P")
	p.say("rate 100")
	for range 5 {
		p.expect("I")
	}
	launches := p.quit(true)
	s := d.statsWhen("the client to go", func(s *vdevice.Stats) bool { return s.Contexts == 0 })
	a, ok := s.Client(p.pid())
	if !ok || a.Kernels != launches || a.Alive || s.Objects != 0 {
		t.Errorf("launched %d; account %+v, %d objects left", launches, a, s.Objects)
	}
	if want := int64(launches) * 500_000; a.RunNS != want {
		t.Errorf("ran %v, want %v", time.Duration(a.RunNS), time.Duration(want))
	}
	t.Logf("wakes late by %v on average, at most %v, %d of %d over 100 us", time.Duration(s.WakeLateMean),
		time.Duration(s.WakeLateMax), s.WakesOver100u, s.Wakes)
}

func (d *device) ran(pid int) time.Duration {
	d.t.Helper()
	s, err := d.Stats()
	if err != nil {
		d.t.Fatal(err)
	}
	a, _ := s.Client(pid)
	return time.Duration(a.RunNS)
}

// Repeated suspension in mid-kernel, through a duplicate of its file, leaves a tenant's results
// correct; a device that loses a block does not.
func TestSuspendLosesNothing(t *testing.T) {
	for _, fault := range []string{"", "lose-block", "suspend-noop"} {
		t.Run("fault "+fault, func(t *testing.T) {
			d := startDevice(t, 1)
			p := d.tenant(nil, "--kernel-us", "20000", "--depth", "2")
			a := d.attach(p.pid())
			if len(a.groups) != 4 || len(a.channels) != 20 {
				t.Fatalf("found %d groups and %d channels", len(a.groups), len(a.channels))
			}
			if fault != "" {
				if err := d.SetFault(fault); err != nil {
					t.Fatal(err)
				}
			}
			p.say("loop")
			p.expect("I")
			var stopped time.Duration
			for i := range 12 {
				a.disable(1)
				before := d.ran(p.pid())
				time.Sleep(15 * time.Millisecond)
				stopped += d.ran(p.pid()) - before
				a.disable(0)
				time.Sleep(time.Duration(7+i) * time.Millisecond)
			}
			if (stopped == 0) != (fault != "suspend-noop") {
				t.Errorf("ran for %v while suspended", stopped)
			}
			p.quit(fault != "lose-block")
			s, err := d.Stats()
			if err != nil {
				t.Fatal(err)
			}
			c, _ := s.Client(p.pid())
			if c.Disables != 12 || c.Enables != 12 || (c.Preemptions >= 5) != (fault != "suspend-noop") {
				t.Errorf("account %+v", c)
			}
		})
	}
}

// The device applies timeslices, except with the fault timeslice-ignored.
func TestTimesliceOfProcess(t *testing.T) {
	d := startDevice(t, 1)
	p := d.tenant(nil, "--kernel-us", "100")
	a := d.attach(p.pid())
	get := func(group uint32) uint64 {
		b := make([]byte, 8)
		if s := a.control(a.client, group, abi.NVA06C_CTRL_CMD_GET_TIMESLICE, b); s != abi.NV_OK {
			t.Fatalf("status %#x", s)
		}
		return binary.LittleEndian.Uint64(b)
	}
	for i, want := range []uint64{2048, 1024, 1024, 1024} {
		if got := get(a.groups[i]); got != want {
			t.Errorf("group %d has %d us, want %d", i, got, want)
		}
	}
	set := func(us uint64) {
		a.control(a.client, a.groups[0], abi.NVA06C_CTRL_CMD_SET_TIMESLICE, binary.LittleEndian.AppendUint64(nil, us))
	}
	if set(1); get(a.groups[0]) != 1 {
		t.Errorf("got %d us", get(a.groups[0]))
	}
	if err := d.SetFault("timeslice-ignored"); err != nil {
		t.Fatal(err)
	}
	if set(500); get(a.groups[0]) != 1 {
		t.Errorf("got %d us from a device that ignores timeslices", get(a.groups[0]))
	}
	if err := d.SetFault("never-answer:" + strconv.Itoa(p.pid())); err != nil {
		t.Fatal(err)
	}
	if _, err := a.try(a.client, a.groups[0], abi.NVA06C_CTRL_CMD_GET_INFO, make([]byte, 4)); err == nil {
		t.Error("the fault never-answer did not suppress the reply")
	}
	if err := d.SetFault("nonsense"); err == nil {
		t.Error("an unknown fault was accepted")
	}
	if err := d.ClearFaults(); err != nil {
		t.Fatal(err)
	}
	p.quit(true)
}

// TestContainerDevices: the container runtime's variable decides which GPUs exist, and the application counts these from
// 0. A list for real GPUs does not count.
func TestContainerDevices(t *testing.T) {
	d := startDevice(t, 4)
	const uuid = "GPU-58536368-6564-2076-6972-7475616c000"
	for _, c := range []struct {
		env  []string
		want int
	}{
		{[]string{"NVIDIA_VISIBLE_DEVICES=" + uuid + "3"}, 2},
		{[]string{"NVIDIA_VISIBLE_DEVICES=" + uuid + "3", "CUDA_VISIBLE_DEVICES=0"}, 2},
		{[]string{"NVIDIA_VISIBLE_DEVICES=" + uuid + "2," + uuid + "4", "CUDA_VISIBLE_DEVICES=1"}, 3},
		{[]string{"NVIDIA_VISIBLE_DEVICES=" + uuid + "2," + uuid + "4", "CUDA_VISIBLE_DEVICES=" + uuid + "4"}, 3},
		{[]string{"NVIDIA_VISIBLE_DEVICES=GPU-11111111-2222-3333-4444-555555555555", "CUDA_VISIBLE_DEVICES=1"}, 1},
		{[]string{"NVIDIA_VISIBLE_DEVICES=1"}, 0},
	} {
		before, err := d.Stats()
		if err != nil {
			t.Fatal(err)
		}
		p := d.tenant(c.env, "--kernel-us", "100", "--device", "0")
		p.say("rate 500")
		p.expect("I")
		p.quit(true)
		after, err := d.Stats()
		if err != nil {
			t.Fatal(err)
		}
		for i := range after.Devices {
			if used := after.Devices[i].Kernels > before.Devices[i].Kernels; used != (i == c.want) {
				t.Errorf("%v: GPU %d used: %v, want GPU %d", c.env, i, used, c.want)
			}
		}
	}
}

// CUDA_VISIBLE_DEVICES reorders: the application's device 0 is the second one.
func TestVisibleDevices(t *testing.T) {
	d := startDevice(t, 2)
	p := d.tenant([]string{"CUDA_VISIBLE_DEVICES=1,0"}, "--kernel-us", "300", "--device", "0")
	q := d.tenant([]string{"CUDA_VISIBLE_DEVICES=1"}, "--kernel-us", "300", "--device", "0")
	a := d.attach(p.pid())
	id := make([]byte, 4)
	a.control(a.client, a.subdevice, abi.NV2080_CTRL_CMD_GPU_GET_ID, id)
	if got := binary.LittleEndian.Uint32(id); got != 0x200 {
		t.Errorf("gpu id %#x, want that of 0000:02:00.0", got)
	}
	for _, p := range []*program{p, q} {
		p.say("rate 200")
		p.expect("I")
	}
	n := p.quit(true) + q.quit(true)
	s, err := d.Stats()
	if err != nil {
		t.Fatal(err)
	}
	if s.Devices[0].Kernels != 0 || s.Devices[1].Kernels != n {
		t.Errorf("devices executed %d and %d kernels, want 0 and %d", s.Devices[0].Kernels, s.Devices[1].Kernels, n)
	}
	spans, err := d.Timeline(0, 1<<62)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range spans {
		if s.Kind == gpumodel.KindRun && (s.Device != 1 || s.PID != p.pid() && s.PID != q.pid() || s.Name != "tenant") {
			t.Errorf("span %+v", s)
		}
	}
}

// The device frees all resources of killed clients.
func TestKilledClients(t *testing.T) {
	d := startDevice(t, 1)
	fds := func() int {
		entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", d.cmd.Process.Pid))
		if err != nil {
			t.Fatal(err)
		}
		return len(entries)
	}
	maps := func() int {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", d.cmd.Process.Pid))
		if err != nil {
			t.Fatal(err)
		}
		return strings.Count(string(b), "vgpu-")
	}
	if _, err := d.Stats(); err != nil { // opens the query connection, so that its descriptors are counted
		t.Fatal(err)
	}
	before := fds()
	for i := range 50 {
		p := d.tenant(nil, "--kernel-us", "5000", "--depth", "4")
		p.say("loop")
		if i%2 == 0 {
			p.expect("I")
		}
		_ = p.cmd.Process.Kill()
		_ = p.cmd.Wait()
		_ = p.in.Close()
	}
	s := d.statsWhen("everything to be freed", func(s *vdevice.Stats) bool { return s.Objects == 0 && s.Contexts == 0 && s.Files == 0 })
	if len(s.Clients) != 50 {
		t.Errorf("%d clients remembered", len(s.Clients))
	}
	if got := fds(); got > before+1 {
		t.Errorf("%d descriptors, %d before", got, before)
	}
	if maps() != 0 {
		t.Errorf("%d mappings left", maps())
	}
	p := d.tenant(nil, "--kernel-us", "500")
	p.say("rate 200")
	p.expect("I")
	p.quit(true)
}

// A duplicate of the driver file keeps a dead process's objects until closed.
func TestObjectsLiveAsLongAsTheFile(t *testing.T) {
	d := startDevice(t, 1)
	p := d.tenant(nil, "--kernel-us", "500")
	a := d.attach(p.pid())
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait()
	time.Sleep(50 * time.Millisecond)
	if s, err := d.Stats(); err != nil || s.Contexts != 1 {
		t.Errorf("%v, stats %+v", err, s)
	}
	if s := a.control(a.client, a.groups[0], abi.NVA06C_CTRL_CMD_GET_INFO, make([]byte, 4)); s != abi.NV_OK {
		t.Errorf("status %#x", s)
	}
	a.close()
	d.statsWhen("the objects to be freed", func(s *vdevice.Stats) bool { return s.Objects == 0 && s.Contexts == 0 })
}

// An invalid packet ends only its own connection.
func TestGarbage(t *testing.T) {
	d := startDevice(t, 1)
	p := d.tenant(nil, "--kernel-us", "500")
	for _, packet := range []string{"x", "VGIO", "VGDGnonsense", strings.Repeat("VGIO", 3000)} {
		conn, err := net.Dial("unixpacket", d.socket)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Write([]byte(packet)); err != nil {
			t.Fatal(err)
		}
		_ = conn.SetReadDeadline(time.Now().Add(5 * time.Second))
		if n, err := conn.Read(make([]byte, 16)); n != 0 || os.IsTimeout(err) {
			t.Errorf("after %.8q: %d bytes, %v; want the end", packet, n, err)
		}
		_ = conn.Close()
	}
	p.say("rate 200")
	p.expect("I")
	p.quit(true)
}

// A second device process on one socket fails and leaves the list of GPUs alone. A stale socket and list
// are replaced; any other file is kept.
func TestSocketInUse(t *testing.T) {
	d := startDevice(t, 3)
	root := filepath.Dir(d.socket)
	listed := func(want int) {
		t.Helper()
		entries, err := os.ReadDir(filepath.Join(root, gpuFolder))
		if err != nil || len(entries) != want || entries[want-1].Name() != fmt.Sprintf("0000:%02x:00.0", want) {
			t.Errorf("listed %v, %v; want %d", entries, err, want)
		}
	}
	serve := func(socket string) string {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), "VGPU_TEST_SERVE="+socket)
		out, _ := cmd.CombinedOutput()
		return string(out)
	}
	if out := serve(d.socket); !strings.Contains(out, "another virtual GPU") {
		t.Errorf("said %q", out)
	}
	listed(3)
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if out := serve(file); !strings.Contains(out, "not a socket") {
		t.Errorf("said %q", out)
	}
	_ = d.cmd.Process.Kill()
	_ = d.cmd.Wait()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "VGPU_TEST_SERVE="+d.socket)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill() }()
	var c *vdevice.Client
	for range 500 {
		var err error
		if c, err = vdevice.Dial(d.socket); err == nil {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	if c == nil {
		t.Fatal("the socket of a dead device was not replaced")
	}
	defer c.Close()
	if _, err := c.Stats(); err != nil { // it serves
		t.Error(err)
	}
	listed(2) // the default
	if err := c.Quit(); err != nil {
		t.Error(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("quit: %v", err)
	}
	if left, err := os.ReadDir(root); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// When the device process dies, its clients get an error and do not hang.
func TestDeviceDies(t *testing.T) {
	d := startDevice(t, 1)
	p := d.tenant(nil, "--kernel-us", "60000000")
	p.say("loop")
	time.Sleep(50 * time.Millisecond)
	_ = d.cmd.Process.Kill()
	if line := p.expect("E"); line[len(line)-1] != "999" {
		t.Errorf("said %v", line)
	}
}

// build builds a test program of the stand-in.
func (d *device) build(name string) string {
	d.t.Helper()
	program := filepath.Join(d.bin, name)
	build := exec.Command("gcc", "-std=c11", "-D_GNU_SOURCE", "-O2", "-Wall", "-Wextra", "-Werror", "-o", program,
		filepath.Join(sourceDir, name+".c"), "-ldl", "-pthread")
	if out, err := build.CombinedOutput(); err != nil {
		d.t.Fatalf("build: %v\n%s", err, out)
	}
	return program
}

// test_cuda.c tests the driver API and prints a line per test.
func TestDriverAPI(t *testing.T) {
	d := startDevice(t, 2)
	program := d.build("test_cuda")
	cmd := exec.Command("timeout", "-s", "KILL", "60", program)
	cmd.Env = d.environment()
	out, err := cmd.CombinedOutput()
	if err != nil || strings.Contains(string(out), "FAIL") {
		t.Errorf("%v\n%s", err, out)
	}
	d.statsWhen("everything to be freed", func(s *vdevice.Stats) bool { return s.Objects == 0 && s.Contexts == 0 })
}

// The preloaded library needs no recent libc, exports only its interface, and builds for arm64 too.
func TestLibraries(t *testing.T) {
	dir := buildC(t)
	for _, name := range []string{"libvgpu.so", "libcuda.so.1"} {
		checkSymbols(t, filepath.Join(dir, name), name == "libcuda.so.1")
	}
	if _, err := exec.LookPath("aarch64-linux-gnu-gcc"); err != nil {
		t.Skip("no cross compiler")
	}
	other := t.TempDir()
	if err := compile("aarch64-linux-gnu-gcc", other); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"libvgpu.so", "libcuda.so.1"} {
		checkSymbols(t, filepath.Join(other, name), name == "libcuda.so.1")
	}
}
