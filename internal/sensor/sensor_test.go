// SPDX-License-Identifier: Apache-2.0

package sensor

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"xsched/internal/control"
	"xsched/internal/health"
	"xsched/internal/model"
)

// The GPUs of the double, by its index.
var gpu0, gpu1 = model.MakeDeviceID(0, 0x65, 0, 0), model.MakeDeviceID(0, 0x17, 0, 0)

func gcc(t *testing.T, args ...string) {
	t.Helper()
	args = append([]string{"-std=c11", "-D_GNU_SOURCE", "-O1", "-Wall", "-Wextra", "-Werror", "-I../../shim"}, args...)
	if text, err := exec.CommandContext(t.Context(), "gcc", args...).CombinedOutput(); err != nil {
		t.Fatalf("gcc %s: %v\n%s", strings.Join(args, " "), err, text)
	}
}

// buildHelper compiles the helper.
func buildHelper(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "sensors")
	gcc(t, "-o", path, "../../shim/sensors/main.c", "../../shim/sensors/nvml.c", "../../shim/sensors/amdgpu.c", "-ldl")
	return path
}

// world is a reader with the helper and the double of the library.
type world struct {
	*Reader
	t      *testing.T
	says   string // the double's file
	mu     sync.Mutex
	starts []time.Time
	again  time.Duration
	hung   time.Duration // the silence of a helper that hangs; 0: longer than a busy machine delays one
	events []string
	done   chan struct{}
}

func newWorld(t *testing.T, flags ...string) *world {
	t.Helper()
	return newWorldThatHangs(t, 0, flags...)
}

func newWorldThatHangs(t *testing.T, hung time.Duration, flags ...string) *world {
	t.Helper()
	dir := t.TempDir()
	w := &world{t: t, says: filepath.Join(dir, "says"), hung: hung, done: make(chan struct{})}
	gcc(t, append(flags, "-shared", "-fPIC", "-o", filepath.Join(dir, "libnvidia-ml.so.1"), "../../test/sensors/nvml.c")...)
	w.start(buildHelper(t), []string{"nvml"}, []string{"LD_LIBRARY_PATH=" + dir, "FAKE_NVML=" + w.says})
	return w
}

// start runs the reader. A restart waits 0.2 seconds, then up to one.
func (w *world) start(path string, args, env []string) {
	w.Reader = &Reader{
		Command: func() (string, []string, error) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.starts = append(w.starts, time.Now())
			return path, env, nil
		},
		Args: args, GPUs: func() []model.DeviceID { return []model.DeviceID{gpu0, gpu1} },
		Notify: func(e Event) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.events = append(w.events, fmt.Sprintf("%v %s (%d)", e.GPU, e.Text, e.Count))
		},
		Log: slog.New(slog.DiscardHandler), Part: (&health.Monitor{}).Add("sensors", time.Second, false),
		limits: limits{20 * time.Second, cmp.Or(w.hung, 20*time.Second), 200 * time.Millisecond, time.Second, w.again},
	}
	ctx, cancel := context.WithCancel(context.Background())
	go func() { w.Run(ctx); close(w.done) }()
	w.t.Cleanup(func() { cancel(); <-w.done })
}

func (w *world) say(lines ...string) {
	w.t.Helper()
	if err := os.WriteFile(w.says+"~", []byte(strings.Join(lines, "\n")+"\n"), 0o600); err != nil {
		w.t.Fatal(err)
	}
	if err := os.Rename(w.says+"~", w.says); err != nil {
		w.t.Fatal(err)
	}
}

// until waits for a condition on both GPUs.
func (w *world) until(what string, f func(a, b *control.Sensors) bool) (a, b *control.Sensors) {
	w.t.Helper()
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if a, b = w.Of(gpu0), w.Of(gpu1); f(a, b) {
			return a, b
		}
	}
	w.t.Fatalf("not %s: %+v, %+v", what, a, b)
	return nil, nil
}

func known(a, b *control.Sensors) bool {
	return a != nil && b != nil && a.Unknown == "" && b.Unknown == "" && a.MemoryTotalBytes != nil
}

func unknown(a, b *control.Sensors) bool {
	return a != nil && b != nil && a.Unknown != "" && b.Unknown != ""
}

func (w *world) seen() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]string(nil), w.events...)
}

func (w *world) started() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.starts)
}

func TestValues(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.say(fmt.Sprintf("free 1 %d", 60<<30))
	a, b := w.until("known", func(a, b *control.Sensors) bool { return known(a, b) && *b.MemoryFreeBytes == 60<<30 })
	want := control.Sensors{
		MemoryTotalBytes: new(uint64(80 << 30)), MemoryUsedBytes: new(uint64(40 << 30)), MemoryFreeBytes: new(uint64(40 << 30)),
		PowerWatts: new(310.25), PowerLimitWatts: new(700.0), TemperatureCelsius: new(101.0), ClockHertz: new(uint64(1980e6)),
		Throttled: []string{"software_power_cap", "hardware_thermal"}, ECCCorrected: new(uint64(7)), ECCUncorrected: new(uint64(2)),
	}
	if !reflect.DeepEqual(*a, want) {
		t.Errorf("%s\nwant %s", a.Text(), want.Text())
	}
	// By address: the library's first GPU is the second on the bus.
	if *b.TemperatureCelsius != 23 || b.ECCCorrected != nil {
		t.Errorf("%+v", b)
	}
	const text = "memory 40GiB of 80GiB, 310 W of 700 W, 101 C, 1980 MHz, throttled: software power cap, hardware thermal, 2 uncorrected ECC errors"
	if a.Text() != text {
		t.Errorf("%s\nwant %s", a.Text(), text)
	}
}

// An old library lacks functions: their values are absent, the others are there.
func TestOldLibrary(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "-DOLD")
	a, b := w.until("known", known)
	for _, s := range []*control.Sensors{a, b} {
		if s.PowerWatts != nil || s.ECCCorrected != nil || s.TemperatureCelsius == nil || len(s.Throttled) != 2 {
			t.Errorf("%+v", s)
		}
	}
}

// A GPU without memory of its own has its other values.
func TestIntegratedGPU(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.say("integrated 1")
	_, b := w.until("known", func(a, b *control.Sensors) bool { return known(a, b) && b.MemoryTotalBytes == nil })
	if b.PowerWatts == nil || b.MemoryFreeBytes != nil || b.MemoryLow || b.MemoryText() != "" {
		t.Errorf("%+v", b)
	}
}

// The warning of a full memory comes once, and again only after some of it was free.
func TestMemoryLow(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	free := func(share float64) { w.say(fmt.Sprintf("free 0 %d", uint64(share*(80<<30)))) }
	await := func(low bool, share float64) {
		t.Helper()
		free(share)
		w.until(fmt.Sprintf("at %g", share), func(a, b *control.Sensors) bool {
			return known(a, b) && *a.MemoryFreeBytes == uint64(share*(80<<30)) && a.MemoryLow == low && !b.MemoryLow
		})
	}
	await(false, 0.035)
	await(true, 0.03)
	await(true, 0.05)
	await(true, 0.03)
	await(false, 0.07)
	await(false, 0.035)
	await(true, 0.005)
	want := []string{"0000:65:00.0 the next allocation may fail: 97 % of its memory is used (1)", "0000:65:00.0 the next allocation may fail: 99 % of its memory is used (1)"}
	if got := w.seen(); !reflect.DeepEqual(got, want) {
		t.Errorf("%q\nwant %q", got, want)
	}
}

func TestXid(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.until("known", known)
	w.say("xid 1 79")
	a, b := w.until("reported", func(_, b *control.Sensors) bool { return b != nil && len(b.Xids) == 1 && len(w.seen()) == 1 })
	if len(a.Xids) != 0 || b.Xids[0].Code != 79 || b.Xids[0].Count != 1 || time.Since(time.Unix(0, b.Xids[0].LastNS)) > time.Minute {
		t.Errorf("%+v, %+v", a.Xids, b.Xids)
	}
	if want := "0000:17:00.0 the driver reports Xid 79 (1)"; w.seen()[0] != want {
		t.Errorf("%q, want %q", w.seen()[0], want)
	}
	w.say("lost 1") // one GPU is lost, the other goes on
	a, b = w.until("lost", func(_, b *control.Sensors) bool { return b.Unknown != "" })
	if a.Unknown != "" || b.Unknown != "GPU is lost" || b.MemoryTotalBytes != nil || len(b.Xids) != 1 {
		t.Errorf("%+v, %+v", a, b)
	}
}

// A library that hangs, then one that crashes: the values are unknown, and come back with the library.
func TestHangAndCrash(t *testing.T) {
	t.Parallel()
	w := newWorldThatHangs(t, 2*time.Second)
	w.until("known", known)
	w.say("hang")
	a, _ := w.until("unknown", unknown)
	if !strings.Contains(a.Unknown, "does not answer") || a.MemoryUsedBytes != nil || a.Text() != "sensors unknown: "+a.Unknown {
		t.Errorf("%+v", a)
	}
	w.say("crash")
	w.until("crashed", func(a, b *control.Sensors) bool { return unknown(a, b) && strings.Contains(a.Unknown, "ended") })
	before := w.started()
	w.until("restarted", func(_, _ *control.Sensors) bool { return w.started() >= before+3 })
	w.mu.Lock()
	for i, delay := 1, 200*time.Millisecond; i < len(w.starts); i, delay = i+1, min(2*delay, time.Second) {
		if took := w.starts[i].Sub(w.starts[i-1]); took < delay {
			t.Errorf("start %d after %v", i, took)
		}
	}
	w.mu.Unlock()
	w.say()
	w.until("known again", known)
}

// Without the library there is nothing, no error and no second attempt.
func TestNoLibrary(t *testing.T) {
	t.Parallel()
	w := &world{t: t, done: make(chan struct{})}
	w.start(buildHelper(t), []string{"nvml"}, []string{"LD_LIBRARY_PATH=" + t.TempDir()})
	if _, err := exec.LookPath("nvidia-smi"); err == nil {
		t.Skip("this host has the library")
	}
	<-w.done
	if w.started() != 1 || w.Of(gpu0) != nil || len(w.seen()) != 0 {
		t.Errorf("%d starts, %+v, %q", w.started(), w.Of(gpu0), w.seen())
	}
}

// Nor is there a second attempt where the helper can't run.
func TestNoHelper(t *testing.T) {
	t.Parallel()
	w := &world{t: t, done: make(chan struct{})}
	w.start(filepath.Join(t.TempDir(), "none"), []string{"nvml"}, nil)
	<-w.done
	if w.started() != 1 || w.Of(gpu0) != nil {
		t.Errorf("%d starts, %+v", w.started(), w.Of(gpu0))
	}
}

// A library that can't work says why, and is asked again.
func TestLibraryRefuses(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.say("refuse")
	a, _ := w.until("refused", unknown)
	if a.Unknown != "Driver/library  version  mismatch" {
		t.Errorf("%q", a.Unknown)
	}
	w.say()
	w.until("known", known)
}

// Whatever a broken helper writes, the reader goes on.
func TestGarbage(t *testing.T) {
	for name, line := range map[string]string{
		"text": "no JSON", "address": `{"gpus":[{"id":"../x"},{"id":"0000:65:00.0","memory_free_bytes":1}]}`, "negative": `{"gpus":[{"id":"0000:65:00.0","memory_free_bytes":-1}]}`,
		"foreign": `{"xid":31,"id":"0000:99:00.0"}`, "endless": strings.Repeat("x", lineBytes+1),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			file := filepath.Join(t.TempDir(), "line")
			if err := os.WriteFile(file, []byte(line+"\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			w := &world{t: t, done: make(chan struct{})}
			w.start("/bin/cat", []string{file}, nil)
			w.until("unknown", unknown)
			if len(w.seen()) != 0 {
				t.Error(w.seen())
			}
		})
	}
}

// The reader ends at once, also while the helper hangs.
func TestEndWhileItHangs(t *testing.T) {
	before := runtime.NumGoroutine()
	t.Run("hang", func(t *testing.T) {
		w := newWorld(t)
		w.say("hang")
		time.Sleep(300 * time.Millisecond)
		began := time.Now()
		t.Cleanup(func() {
			if took := time.Since(began); took > 5*time.Second {
				t.Errorf("ended after %v", took)
			}
		})
	})
	for end := time.Now().Add(5 * time.Second); runtime.NumGoroutine() > before; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d goroutines, %d before", runtime.NumGoroutine(), before)
		}
	}
}

// The error that the helper hangs for is known although no values come any more.
func TestXidBeforeHang(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	helper := filepath.Join(dir, "helper")
	const lines = `{"gpus":[{"id":"0000:65:00.0"}]}` + "\n" + `{"xid":79,"id":"0000:65:00.0"}`
	if err := os.WriteFile(helper, []byte("#!/bin/sh\ncat <<.\n"+lines+"\n.\nexec sleep 1000\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, hung: 500 * time.Millisecond, again: time.Hour, done: make(chan struct{})}
	w.start(helper, []string{"x"}, nil)
	w.until("lost", func(a, _ *control.Sensors) bool { return w.started() > 2 && a.Unknown != "" })
	if got, want := w.seen(), []string{"0000:65:00.0 the driver reports Xid 79 (1)"}; !reflect.DeepEqual(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// What any user can cause each second makes few events.
func TestFewEvents(t *testing.T) {
	r := &Reader{limits: limits{again: time.Hour}}
	var events []Event
	take := func(m message) {
		r.Notify = func(e Event) { events = append(events, e) }
		r.take(&m)
	}
	line := func(free uint64) (m message) {
		m.GPUs = append(m.GPUs, struct {
			ID string `json:"id"`
			control.Sensors
		}{gpu0.String(), control.Sensors{MemoryTotalBytes: new(uint64(1000)), MemoryFreeBytes: new(free)}})
		return m
	}
	take(line(500))
	for range 100 {
		take(message{ID: gpu0.String(), Xid: 31})
		take(line(10))
		take(line(500))
	}
	take(line(10))
	want := []Event{{gpu0, 31, "the driver reports Xid 31", 1}, {gpu0, 0, "the next allocation may fail: 99 % of its memory is used", 1}}
	if !reflect.DeepEqual(events, want) {
		t.Errorf("%v", events)
	}
	if s := r.Of(gpu0); !s.MemoryLow || s.Xids[0].Count != 100 {
		t.Errorf("%+v", s)
	}
	r.limits.again, events = 0, nil
	take(line(10))
	if want[0].Count = 99; !reflect.DeepEqual(events, want) {
		t.Errorf("later: %v", events)
	}
}

// A helper that names GPUs without an end.
func TestManyGPUs(t *testing.T) {
	r := &Reader{Notify: func(Event) {}}
	for round := range 3 {
		var m message
		for i := range 1000 {
			m.GPUs = append(m.GPUs, struct {
				ID string `json:"id"`
				control.Sensors
			}{ID: model.MakeDeviceID(uint32(round), uint32(i), uint32(i>>8), 0).String()})
		}
		r.take(&m)
	}
	if len(r.gpus) != mostGPUs {
		t.Errorf("%d GPUs", len(r.gpus))
	}
}

// A thread that ends takes no helper with it.
func TestThreadsEnd(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.until("known", known)
	for range 20 {
		var all sync.WaitGroup
		for range 20 {
			all.Go(func() {
				runtime.LockOSThread() // without an unlock, the thread ends too
				time.Sleep(time.Millisecond)
			})
		}
		all.Wait()
	}
	w.say("free 0 1")
	w.until("read", func(a, b *control.Sensors) bool { return known(a, b) && *a.MemoryFreeBytes == 1 })
	if n := w.started(); n != 1 {
		t.Errorf("%d starts", n)
	}
}

// A helper that hangs ends with a daemon that is killed.
func TestKilledDaemon(t *testing.T) {
	const folder = "SENSOR_TEST_FOLDER"
	if dir := os.Getenv(folder); dir != "" { // the daemon
		w := &world{t: t, done: make(chan struct{})}
		w.start(filepath.Join(dir, "helper"), []string{filepath.Join(dir, "pid")}, nil)
		select {}
	}
	t.Parallel()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "helper"), []byte("#!/bin/sh\necho $$ >$1~; mv $1~ $1\nexec sleep 1000\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	daemon := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestKilledDaemon$")
	daemon.Env = append(os.Environ(), folder+"="+dir)
	if err := daemon.Start(); err != nil {
		t.Fatal(err)
	}
	var pid string
	for end := time.Now().Add(30 * time.Second); pid == ""; time.Sleep(10 * time.Millisecond) {
		text, _ := os.ReadFile(filepath.Join(dir, "pid"))
		if pid = strings.TrimSpace(string(text)); time.Now().After(end) {
			t.Fatal("no helper")
		}
	}
	_ = daemon.Process.Kill()
	_ = daemon.Wait()
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		status, err := os.ReadFile("/proc/" + pid + "/stat")
		if err != nil || strings.Contains(string(status), ") Z ") { // nobody may wait for it in a container
			return
		}
		if time.Now().After(end) {
			t.Fatalf("still there: %s", status)
		}
	}
}

// TestWedged: a question for the driver's GPUs that never returns is seen by the health check, and the values are
// gone all the same.
func TestWedged(t *testing.T) {
	t.Parallel()
	monitor, release := &health.Monitor{}, make(chan struct{})
	r := &Reader{
		Command: func() (string, []string, error) { return "/bin/false", nil, nil }, Args: []string{"x"}, Notify: func(Event) {},
		GPUs: func() []model.DeviceID { <-release; return nil }, Log: slog.New(slog.DiscardHandler),
		Part: monitor.Add("sensors", 50*time.Millisecond, false), gpus: map[model.DeviceID]*gpu{gpu0: {Sensors: control.Sensors{MemoryFreeBytes: new(uint64(1))}}},
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { r.Run(ctx); close(done) }()
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		if s := monitor.States()[0]; s.Late() {
			break
		}
		if time.Now().After(end) {
			t.Fatal("nobody notices")
		}
	}
	if s := r.Of(gpu0); s.Unknown == "" || s.MemoryFreeBytes != nil {
		t.Errorf("%+v", s)
	}
	close(release)
	cancel()
	<-done
}

// amdRoot is a tree of sysfs with two GPUs of the driver, an output and a GPU of another vendor.
func amdRoot(t *testing.T) string {
	root := t.TempDir()
	put := func(name, text string) {
		t.Helper()
		name = filepath.Join(root, "sys", name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for card, pci := range map[string]string{"card0": "0000:17:00.0", "card1": "0000:65:00.0", "card2": "0000:03:00.0"} {
		device := "devices/pci0000:00/" + pci
		put(device+"/vendor", map[bool]string{true: "0x1002", false: "0x1af4"}[card != "card2"])
		put("class/drm/"+card+"/dev", "226:0")
		if err := os.Symlink(filepath.Join(root, "sys", device), filepath.Join(root, "sys/class/drm", card, "device")); err != nil {
			t.Fatal(err)
		}
		put(device+"/power/runtime_status", "active")
	}
	put("class/drm/card0-DP-1/status", "connected")
	const a, b = "devices/pci0000:00/0000:65:00.0/", "devices/pci0000:00/0000:17:00.0/"
	put(a+"mem_info_vram_total", "206141652992")
	put(a+"mem_info_vram_used", "1030708264")
	put(a+"hwmon/hwmon3/power1_input", "142000000")
	put(a+"hwmon/hwmon3/power1_cap", "750000000")
	put(a+"hwmon/hwmon3/temp2_input", "38000")
	put(a+"hwmon/hwmon3/freq1_input", "132000000")
	put(b+"mem_info_vram_total", "17163091968")
	put(b+"mem_info_vram_used", "17000000000")
	put(b+"hwmon/hwmon4/power1_average", "212000000")
	put(b+"hwmon/hwmon4/temp1_input", "no number")
	put(b+"hwmon/hwmon4/temp2_input", "71000")
	return root
}

func TestAMD(t *testing.T) {
	t.Parallel()
	root := amdRoot(t)
	w := &world{t: t, done: make(chan struct{})}
	w.start(buildHelper(t), []string{"amdgpu", root}, nil)
	a, b := w.until("known", known)
	for _, c := range []struct{ got, want string }{
		{a.Text(), "memory 983MiB of 192GiB, 142 W of 750 W, 38 C, 132 MHz"}, {b.Text(), "memory 15.8GiB of 16GiB, 212 W, 71 C"},
	} {
		if c.got != c.want {
			t.Errorf("%q, want %q", c.got, c.want)
		}
	}
	if a.MemoryLow || !b.MemoryLow || w.Of(model.MakeDeviceID(0, 3, 0, 0)) != nil {
		t.Errorf("%+v, %+v", a, b)
	}
	if err := os.WriteFile(filepath.Join(root, "sys/class/drm/card0/device/power/runtime_status"), []byte("suspended\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	a, b = w.until("asleep", func(_, b *control.Sensors) bool { return b.Unknown != "" })
	if a.Unknown != "" || b.MemoryUsedBytes != nil {
		t.Errorf("%+v, %+v", a, b)
	}
	if err := os.Rename(filepath.Join(root, "sys/class/drm/card0"), filepath.Join(root, "gone")); err != nil {
		t.Fatal(err)
	}
	w.until("gone", func(_, b *control.Sensors) bool { return b.Unknown == "the driver no longer lists it" })
}
