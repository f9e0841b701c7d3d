// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// circumstance is a program that is hard to be a guest of. It runs without and with the shim, with the same
// output and exit code. docs/programming.md has the table.
type circumstance struct {
	name    string
	build   []string // compiler and flags; nil: gcc
	wrap    []string // command that starts it
	mode    []string // arguments of testdata/program.c
	env     []string
	preload string   // library that both runs preload
	flags   []string // of xsched run
	beside  bool     // a more important program runs, so that limits are in force

	exit     int  // not 0: a sanitizer's report, and no output is compared
	native   bool // one warning, no scheduling
	unproven bool // runs natively without a warning, or ends before the daemon can be asked
}

const (
	asanOptions  = "ASAN_OPTIONS=detect_leaks=0:exitcode=99:verify_asan_link_order=0"
	tsanOptions  = "TSAN_OPTIONS=exitcode=98"
	workLaunches = 100
)

func number(call int) string { return strconv.Itoa(call) }

func circumstances(t *testing.T) []circumstance {
	library := filepath.Join(t.TempDir(), "constructor.so")
	musl := filepath.Join(t.TempDir(), "musl")
	list := []circumstance{
		{name: "glibc", mode: []string{"work"}},
		{name: "shim disabled", mode: []string{"work"}, env: []string{"XSCHED_DISABLE=1"}, unproven: true},
		{name: "musl", build: []string{"musl-gcc"}, mode: []string{"hello"}, native: true},
		{name: "static", build: []string{"gcc", "-static"}, mode: []string{"hello"}, native: true},
		{name: "child uses musl", mode: []string{"child", musl}},
		{name: "jemalloc", preload: "libjemalloc.so.2", mode: []string{"work"}},
		{name: "tcmalloc", preload: "libtcmalloc_minimal.so.4", mode: []string{"work"}},
		{name: "seccomp refuses membarrier", mode: []string{"refused", number(int(unix.ENOSYS)), number(unix.SYS_MEMBARRIER)}},
		{name: "seccomp refuses eventfd", mode: []string{"refused", number(int(unix.EPERM)), number(unix.SYS_EVENTFD2)}, unproven: true},
		{name: "seccomp refuses sockets", mode: []string{"refused", number(int(unix.EPERM)), number(unix.SYS_SOCKET)}, unproven: true},
		{name: "seccomp refuses ppoll", mode: []string{"refused", number(int(unix.EPERM)), number(unix.SYS_PPOLL)}},
		{name: "seccomp refuses mremap", mode: []string{"refused", number(int(unix.ENOSYS)), number(unix.SYS_MREMAP)}, unproven: true},
		{name: "no address space", mode: []string{"memory"}, unproven: true},
		{name: "few descriptors", mode: []string{"files", "12"}, unproven: true},
		{name: "64 descriptors", mode: []string{"files", "64"}},
		{name: "cancelled threads", mode: []string{"cancelled"}},
		{name: "constructor destroys a stream", mode: []string{"constructor", library}},
		{name: "work waits for later work, Lv1", mode: []string{"crossing"}, flags: []string{"--level", "1", "--in-flight", "2"}, beside: true},
		{name: "fork copies few pages", mode: []string{"pages", "8"}},
	}
	compileC(t, library, "gcc", "-shared", "-fPIC", "testdata/constructor.c")
	if _, err := exec.LookPath("musl-gcc"); err == nil {
		compileC(t, musl, "musl-gcc", "testdata/program.c")
	} else {
		list = slices.DeleteFunc(list, func(c circumstance) bool { return c.name == "child uses musl" })
	}
	return list
}

func sanitized() (list []circumstance) {
	// TSan can't place its shadow memory at every random address.
	fixed := []string{"setarch", "-R"}
	asan, tsan := []string{asanOptions}, []string{tsanOptions}
	for _, compiler := range []string{"gcc", "clang-14"} {
		name := compiler + " "
		address, thread := []string{compiler, "-fsanitize=address"}, []string{compiler, "-fsanitize=thread"}
		list = append(list,
			circumstance{name: name + "asan", build: address, mode: []string{"work"}, env: asan},
			circumstance{name: name + "asan, disabled", build: address, mode: []string{"work"}, env: append(asan, "XSCHED_DISABLE=1"), unproven: true},
			circumstance{name: name + "asan finds a bug", build: address, mode: []string{"overrun"}, env: asan, exit: 99},
			circumstance{name: name + "tsan", build: thread, wrap: fixed, mode: []string{"work"}, env: tsan},
			circumstance{name: name + "tsan, disabled", build: thread, wrap: fixed, mode: []string{"work"}, env: append(tsan, "XSCHED_DISABLE=1"), unproven: true},
			circumstance{name: name + "tsan finds a bug", build: thread, wrap: fixed, mode: []string{"race"}, env: tsan, exit: 98},
		)
	}
	return append(list, circumstance{name: "gcc asan, static runtime", build: []string{"gcc", "-fsanitize=address", "-static-libasan"}, mode: []string{"work"}, env: asan})
}

func compileC(t *testing.T, out string, argv ...string) {
	t.Helper()
	argv = append(argv, "-std=gnu11", "-D_GNU_SOURCE", "-O1", "-g", "-w", "-o", out)
	if text, err := exec.Command(argv[0], argv[1:]...).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(argv, " "), err, text)
	}
}

// programs compiles each variant of testdata/program.c once.
type programs struct {
	dir   string
	built map[string]string
}

func (p *programs) path(t *testing.T, build []string) string {
	t.Helper()
	if build == nil {
		build = []string{"gcc"}
	}
	if _, err := exec.LookPath(build[0]); err != nil {
		t.Skipf("%s is missing; run tools/setup", build[0])
	}
	key := strings.Join(build, " ")
	if p.built[key] == "" {
		path := filepath.Join(p.dir, fmt.Sprintf("program%d", len(p.built)))
		compileC(t, path, append(slices.Clone(build), "-rdynamic", "testdata/program.c", "-ldl", "-lpthread")...)
		p.built[key] = path
	}
	return p.built[key]
}

func findLibrary(t *testing.T, name string) string {
	t.Helper()
	out, _ := exec.Command("/sbin/ldconfig", "-p").Output()
	for line := range strings.Lines(string(out)) {
		if _, path, ok := strings.Cut(strings.TrimSpace(line), " => "); ok && filepath.Base(path) == name {
			return path
		}
	}
	t.Skipf("%s is missing; run tools/setup", name)
	return ""
}

// outcome is what a program shows of itself.
type outcome struct {
	lines []string
	exit  int
}

// conclude reads the program's lines up to "done", lets it end and returns what it did.
func (p *program) conclude(t *testing.T, proof func()) outcome {
	t.Helper()
	var o outcome
	timeout := time.After(30 * time.Second)
	for running := true; running; {
		select {
		case line, ok := <-p.lines:
			running = ok
			if ok {
				o.lines = append(o.lines, line)
			}
			if line == "done" && len(p.lines) == 0 {
				proof()
				running = false
			}
		case <-timeout:
			t.Fatalf("the program hangs after %q; stderr: %s", o.lines, p.stderr())
		}
	}
	err := p.wait(10 * time.Second)
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		o.exit = exit.ExitCode()
	} else if err != nil {
		t.Fatalf("%v; stderr: %s", err, p.stderr())
	}
	return o
}

// plain starts a program on the virtual GPU without the shim.
func (w *world) plain(c circumstance, preload string, argv []string) *program {
	libraries := product(w.t, "virtual/libvgpu.so")
	if preload != "" {
		libraries += ":" + preload
	}
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env = append(w.env(c.env...), "LD_PRELOAD="+libraries, "LD_LIBRARY_PATH="+filepath.Dir(product(w.t, "virtual/libcuda.so.1")),
		"XSCHED_VGPU_SOCKET="+w.path("vgpu.sock"))
	return w.drive(cmd)
}

// TestPrograms: each program behaves under the shim as it does without it, and is scheduled where it can be.
func TestPrograms(t *testing.T) {
	t.Parallel()
	testPrograms(t, newWorld(t), circumstances(t))
}

// TestBatchedPrograms is TestPrograms with the kernels of every program in batches, next to a service.
// No program waits for its own batch, and each has its results.
func TestBatchedPrograms(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.must("policy", "HPF/batch-all")
	high := w.tenant(options{priority: 10}, 100)
	high.send("rate 20")
	testPrograms(t, w, circumstances(t))
	if p := w.process(high.pid()); p == nil || p.Queues[0].Bursts == 0 {
		t.Errorf("no batch was released: %+v", p)
	}
	high.finish()
}

// TestLongSanitizedPrograms is TestPrograms for programs with the sanitizers of two compilers.
func TestLongSanitizedPrograms(t *testing.T) {
	t.Parallel()
	testPrograms(t, newWorld(t), sanitized())
}

func testPrograms(t *testing.T, w *world, list []circumstance) {
	t.Helper()
	built := &programs{dir: t.TempDir(), built: map[string]string{}}
	for _, c := range list {
		t.Run(c.name, func(t *testing.T) {
			path := built.path(t, c.build)
			argv := append(append(slices.Clone(c.wrap), path), c.mode...)
			preload := ""
			env := slices.Clone(c.env)
			if c.preload != "" {
				preload = findLibrary(t, c.preload)
				env = append(env, "LD_PRELOAD="+preload)
			}
			want := w.plain(c, preload, argv).conclude(t, func() {})
			if want.exit != c.exit {
				t.Fatalf("without the shim: exit %d, want %d", want.exit, c.exit)
			}
			if c.beside {
				high := w.tenant(options{priority: 10}, 100)
				high.send("rate 20")
				defer high.finish()
			}
			p := w.run(options{env: env, args: c.flags}, argv...)
			got := p.conclude(t, func() {
				if !c.native && !c.unproven && c.exit == 0 {
					eventually(t, soon, "launches counted equal kernels executed", func() bool {
						s := w.process(p.pid())
						return s != nil && s.Counters.Launches > 0 && s.Counters.Launches == w.account(p.pid()).Kernels
					})
				}
			})
			switch {
			case got.exit != want.exit:
				t.Errorf("under the shim: %+v, without it: %+v; stderr: %s", got, want, p.stderr())
			case c.exit == 0 && !slices.Equal(got.lines, want.lines):
				t.Errorf("wrong result: under the shim: %+v, without it: %+v; stderr: %s", got, want, p.stderr())
			}
			warnings := strings.Count(p.stderr(), "xsched: warning: running without scheduling: ")
			if expected := map[bool]int{true: 1}[c.native]; warnings != expected || (c.native && strings.Count(p.stderr(), "\n") != 1) {
				t.Errorf("%d warnings, want %d: %q", warnings, expected, p.stderr())
			}
			if c.exit == 0 && strings.Contains(p.stderr(), "Sanitizer") {
				t.Errorf("a report: %s", p.stderr())
			}
		})
	}
}

// TestForkCost: the shim adds few page faults to a child that does not use the GPU. They are what a fork
// costs, and unlike time, other load does not change their number.
func TestForkCost(t *testing.T) {
	t.Parallel()
	const most = 20
	w := newWorld(t)
	built := &programs{dir: t.TempDir(), built: map[string]string{}}
	argv := []string{built.path(t, nil), "forks", "500"}
	measure := func(p *program) (median, faults int) {
		o := p.conclude(t, func() {})
		if _, err := fmt.Sscanf(o.lines[0], "median %d faults %d", &median, &faults); err != nil || o.exit != 0 {
			t.Fatalf("%+v: %v", o, err)
		}
		return median, faults
	}
	plain, faults := measure(w.plain(circumstance{}, "", argv))
	shim, shimFaults := measure(w.run(options{}, argv...))
	t.Logf("fork, exit and wait: %d us and %d faults, with the shim %d us (x%.2f) and %d", plain/1000, faults, shim/1000, float64(shim)/float64(plain), shimFaults)
	if shimFaults > faults+most {
		t.Errorf("a child has %d page faults, %d without the shim", shimFaults, faults)
	}
}

// TestShimUnloaded: a program that loads the shim late and unloads it again goes on.
func TestShimUnloaded(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	built := &programs{dir: t.TempDir(), built: map[string]string{}}
	path := built.path(t, nil)
	want := w.plain(circumstance{}, "", []string{path, "work"}).conclude(t, func() {})
	socket := circumstance{env: []string{"XSCHED_SOCKET=" + w.path("xsched.sock")}}
	got := w.plain(socket, "", []string{path, "closed", product(t, "libxsched.so")}).conclude(t, func() {})
	if got.exit != 0 || !slices.Equal(got.lines, want.lines) {
		t.Errorf("after the shim was unloaded: %+v, without it: %+v", got, want)
	}
}

// TestTimeNamespace: a program whose clock is shifted obeys the daemon, whichever way it is shifted.
func TestTimeNamespace(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("needs root: makes a time namespace")
	}
	for _, seconds := range []string{"100000", "-60"} {
		t.Run(seconds, func(t *testing.T) {
			shift := []string{"unshare", "--time", "--monotonic", seconds}
			if exec.Command(shift[0], append(slices.Clone(shift[1:]), "true")...).Run() != nil {
				t.Skip("no time namespaces here")
			}
			w := newWorld(t)
			run := append(shift, xschedPath(t), "run", "--virtual", "--level", "1", "--", product(t, "virtual/tenant"), "--name", "t", "--kernel-us", "500")
			cmd := exec.Command(run[0], run[1:]...)
			cmd.Env = w.env()
			p := w.drive(cmd)
			p.expect("R", soon)
			p.send("loop")
			pid := 0
			eventually(t, soon, "the program joins", func() bool {
				list, err := w.client.List(t.Context())
				if err != nil || len(list.Processes) != 1 || len(list.Processes[0].Queues) == 0 {
					return false
				}
				pid = list.Processes[0].PID
				return true
			})
			runs := func() {
				t.Helper()
				from := w.account(pid).Kernels
				eventually(t, soon, "20 kernels", func() bool { return w.account(pid).Kernels >= from+20 })
			}
			runs() // the program's own times are shifted
			w.must("suspend", strconv.Itoa(pid))
			time.Sleep(100 * time.Millisecond)
			before := w.account(pid).Kernels
			time.Sleep(400 * time.Millisecond)
			if after := w.account(pid).Kernels; after != before {
				t.Errorf("%d kernels ran in a program that is held at its gate", after-before)
			}
			w.must("resume", strconv.Itoa(pid))
			runs()
			p.finish()
		})
	}
}
