// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"xsched/internal/control"
	"xsched/internal/control/client"
)

// installed is an installation prefix as `make install-dev` stages it, with the program in its bin folder.
var installed = sync.OnceValues(func() (string, error) {
	prefix, err := os.MkdirTemp("", "xsched-prefix-")
	if err != nil {
		return "", err
	}
	installedAt = prefix
	for _, argv := range [][]string{
		{"make", "-s", "-C", root, "install-dev", "PREFIX=" + prefix},
		{"install", "-D", "-m", "755", filepath.Join(root, "bin", "xsched"), filepath.Join(prefix, "bin", "xsched")},
	} {
		if text, err := exec.Command(argv[0], argv[1:]...).CombinedOutput(); err != nil {
			return "", fmt.Errorf("%v: %w\n%s", argv, err, text)
		}
	}
	return prefix, nil
})

var installedAt string // for TestMain, which removes it; empty: never used

func prefixOf(t testing.TB) string {
	t.Helper()
	prefix, err := installed()
	if err != nil {
		t.Fatal(err)
	}
	return prefix
}

// upstreamProgram builds a program of testdata/upstream as upstream's Makefiles do: with the vendor's header,
// the installed headers and the given libraries.
func upstreamProgram(t *testing.T, compiler, source, header string, flags ...string) string {
	t.Helper()
	for _, need := range []string{compiler, "pkg-config"} {
		if _, err := exec.LookPath(need); err != nil {
			t.Skipf("no %s: run make setup", need)
		}
	}
	include := filepath.Join(root, ".setup", "include")
	if _, err := os.Stat(filepath.Join(include, header)); err != nil {
		t.Skipf("no %s: run make setup", header)
	}
	out := filepath.Join(t.TempDir(), "program")
	args := []string{"-O2", "-Wall", "-Wextra", "-Werror", "-isystem", include, "-D__HIP_PLATFORM_AMD__", filepath.Join("testdata", "upstream", source), "-o", out}
	args = append(args, flags...)
	if text, err := exec.Command(compiler, append(args, "-lpthread")...).CombinedOutput(); err != nil {
		t.Fatalf("%s %v: %v\n%s", compiler, args, err, text)
	}
	return out
}

// startUpstream starts a program with the library preloaded under upstream's name (empty: only linked), on a
// virtual GPU: its library in place of the kernel, and its environment.
func (w *world) startUpstream(program, preload, kernel string, device ...string) *program {
	w.t.Helper()
	lib := filepath.Join(prefixOf(w.t), "lib")
	list := product(w.t, kernel)
	if preload != "" {
		list = filepath.Join(lib, preload) + ":" + list
	}
	cmd := exec.Command(program)
	cmd.Env = w.env(append(device, "LD_PRELOAD="+list, "XDG_RUNTIME_DIR="+w.dir,
		"LD_LIBRARY_PATH="+lib+":"+filepath.Dir(product(w.t, kernel)))...)
	return w.drive(cmd)
}

// startHIP is startUpstream with a HIP program.
func (w *world) startHIP(program string) *program {
	w.t.Helper()
	return w.startUpstream(program, "libshimhip.so", "virtual/libvkfd.so", "XSCHED_VKFD_SOCKET="+w.path("kfd.sock"), "XSCHED_VKFD_ROOT="+w.path("kfd"))
}

// priorities of a process's own queues, sorted.
func priorities(p *control.Process) (found []int) {
	if p == nil {
		return nil
	}
	for _, q := range p.Queues {
		if q.Stream {
			found = append(found, int(q.Hints.Priority))
		}
	}
	slices.Sort(found)
	return found
}

// shims lists the copies of the library in a process.
func shims(t testing.TB, pid int) []string {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		if path := fields[len(fields)-1]; strings.Contains(path, "libxsched.so") && !slices.Contains(found, path) {
			found = append(found, path)
		}
	}
	return found
}

// TestUpstreamLocalScheduler: a HIP program chooses the local scheduler. It gets a private one that schedules
// its two streams, ends with the program, and is no child of it; the daemon of all leaves it alone.
func TestUpstreamLocalScheduler(t *testing.T) {
	t.Parallel()
	prefix := prefixOf(t)
	program := upstreamProgram(t, "g++", "intra_process.cpp", "hip/hip_runtime.h", "-std=c++17", "-I"+prefix+"/include",
		product(t, "virtual/libamdhip64.so.6"), "-L"+prefix+"/lib", "-lpreempt", "-lhalhip") // upstream's order
	w := hipWorld(t)
	t.Run("preloaded", func(t *testing.T) {
		w := *w
		w.t = t
		w.checkLocal(w.startHIP(program))
	})
	t.Run("xsched run", func(t *testing.T) {
		w := *w
		w.t = t
		w.checkLocal(w.run(options{env: []string{"XDG_RUNTIME_DIR=" + w.dir}}, program))
	})
}

// TestLinkRuntimes: upstream's way to start a program, a folder in LD_LIBRARY_PATH. Programs that are linked with the
// runtime and programs that open it are scheduled, at the level of a preloaded library. The folder of an
// installation that is already in the path does not mislead the command.
func TestLinkRuntimes(t *testing.T) {
	t.Parallel()
	folders := []string{t.TempDir(), t.TempDir()}
	path := filepath.Dir(product(t, "virtual/libamdhip64.so.6"))
	for _, folder := range folders { // the second one with the first in its path
		cmd := exec.Command(xschedPath(t), "link-runtimes", folder)
		cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+path)
		if text, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("link-runtimes: %v\n%s", err, text)
		}
		path = folder + ":" + path
	}
	prefix := prefixOf(t)
	for name, c := range map[string]struct {
		program []string
		hip     bool
		level   string
	}{
		"HIP, linked":  {[]string{upstreamProgram(t, "g++", "loop.cpp", "hip/hip_runtime.h", "-std=c++17", "-I"+prefix+"/include", product(t, "virtual/libamdhip64.so.6"))}, true, "2"},
		"CUDA, opened": {[]string{product(t, "virtual/tenant"), "--name", "t", "--kernel-us", "300"}, false, "3"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, kernel, device := (*world)(nil), "virtual/libvgpu.so", []string(nil)
			if c.hip {
				w, kernel = hipWorld(t), "virtual/libvkfd.so"
				device = []string{"XSCHED_VKFD_SOCKET=" + w.path("kfd.sock"), "XSCHED_VKFD_ROOT=" + w.path("kfd")}
			} else {
				w = newWorld(t)
				device = []string{"XSCHED_VGPU_SOCKET=" + w.path("vgpu.sock")}
			}
			cmd := exec.Command(c.program[0], c.program[1:]...)
			cmd.Env = w.env(append(device, "LD_PRELOAD="+product(t, kernel), "LD_LIBRARY_PATH="+path, "XDG_RUNTIME_DIR="+w.dir)...)
			p := w.drive(cmd)
			if !c.hip {
				p.expect("R", soon)
				p.send("loop")
			}
			eventually(t, soon, "its launches are counted, at the highest level", func() bool {
				known := w.process(p.pid())
				return known != nil && known.Counters.Launches > 10 && len(known.Queues) > 0 && strconv.Itoa(known.Queues[0].Level) == c.level
			})
			if found := shims(t, p.pid()); len(found) != 1 {
				t.Errorf("copies of the library: %v", found)
			}
			_ = p.in.Close()
			_ = p.wait(soon)
		})
	}
}

// checkLocal follows testdata/upstream/intra_process.cpp to its end.
func (w *world) checkLocal(p *program) {
	t := w.t
	t.Helper()
	var own *world
	eventually(t, soon, "a private scheduler is there", func() bool {
		found, err := filepath.Glob(w.path("xsched-local-*"))
		if err != nil || len(found) != 1 {
			return false
		}
		own = &world{t: t, dir: found[0], client: client.New(filepath.Join(found[0], "control.sock"))}
		return own.process(p.pid()) != nil
	})
	defer own.client.Close()
	eventually(t, soon, "its hints are in force", func() bool {
		return slices.Equal(priorities(own.process(p.pid())), []int{1, 2})
	})
	if out := w.must("policy", "--dir", own.dir); !strings.Contains(out, "HPF") {
		t.Errorf("policy: %s", out)
	}
	p.expect("first task of priority", soon)
	p.expect("first task of priority", soon)
	eventually(t, soon, "the higher stream preempts the lower", func() bool {
		known := own.process(p.pid())
		if known == nil {
			return false
		}
		for _, q := range known.Queues {
			if q.Stream && q.Hints.Priority == 1 {
				return q.Preemptions > 0
			}
		}
		return false
	})
	if w.process(p.pid()) != nil {
		t.Error("the daemon of all has it too")
	}
	if found := shims(t, p.pid()); len(found) != 1 {
		t.Errorf("copies of the library: %v", found)
	}
	children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", p.pid(), p.pid()))
	if err == nil && strings.TrimSpace(string(children)) != "" {
		t.Errorf("the program has children: %s", children)
	}
	_ = p.in.Close()
	p.expect("end", soon)
	if err := p.wait(soon); err != nil {
		t.Errorf("%v; stderr: %s", err, p.stderr())
	}
	eventually(t, soon, "the private scheduler ends with its program", func() bool {
		_, err := os.Stat(own.dir)
		return os.IsNotExist(err)
	})
}

// TestUpstreamManual: hints of a HIP program reach the daemon. Then the program schedules itself.
func TestUpstreamManual(t *testing.T) {
	t.Parallel()
	prefix := prefixOf(t)
	program := upstreamProgram(t, "g++", "manual.cpp", "hip/hip_runtime.h", "-std=c++17", "-I"+prefix+"/include",
		product(t, "virtual/libamdhip64.so.6"), "-L"+prefix+"/lib", "-lpreempt", "-lhalhip")
	w := hipWorld(t)
	w.checkManual(w.startHIP(program))
}

// checkManual follows testdata/upstream/manual.cpp to its end.
func (w *world) checkManual(p *program) {
	t := w.t
	t.Helper()
	p.expect("ready", soon)
	eventually(t, soon, "the hints are in force", func() bool {
		known := w.process(p.pid())
		if !slices.Equal(priorities(known), []int{1, 2}) || known.Hints.TimesliceUS != 10_000_000 {
			return false
		}
		return !slices.ContainsFunc(known.Queues, func(q control.Queue) bool { return q.Stream && (q.Hints.InFlight != 8 || q.Hints.Batch != 4) })
	})
	_ = p.in.Close()
	p.expect("suspended yes", soon)
	if err := p.wait(soon); err != nil {
		t.Errorf("%v; stderr: %s", err, p.stderr())
	}
}

// TestUpstreamLinkOrder: a program that is linked with the runtime before the library, and preloads nothing, is
// scheduled, whether the loader binds its calls at the start or when they are made.
func TestUpstreamLinkOrder(t *testing.T) {
	t.Parallel()
	prefix := prefixOf(t)
	for _, binding := range []string{"now", "lazy"} {
		t.Run(binding, func(t *testing.T) {
			t.Parallel()
			program := upstreamProgram(t, "g++", "manual.cpp", "hip/hip_runtime.h", "-std=c++17", "-I"+prefix+"/include", "-Wl,-z,"+binding, "-Wl,-z,relro",
				product(t, "virtual/libamdhip64.so.6"), "-L"+prefix+"/lib", "-lpreempt", "-lhalhip") // upstream's order
			w := hipWorld(t)
			p := w.startUpstream(program, "", "virtual/libvkfd.so", "XSCHED_VKFD_SOCKET="+w.path("kfd.sock"), "XSCHED_VKFD_ROOT="+w.path("kfd"))
			w.checkManual(p)
		})
	}
}

// TestUpstreamLinkNames: a C program links with any of the names, runs preloaded or only linked, and has one
// copy of the library.
func TestUpstreamLinkNames(t *testing.T) {
	t.Parallel()
	prefix := prefixOf(t)
	w := newWorld(t)
	driver := product(t, "virtual/libcuda.so.1")
	config := exec.Command("pkg-config", "--cflags", "--libs", "xsched")
	config.Env = append(os.Environ(), "PKG_CONFIG_PATH="+prefix+"/lib/pkgconfig")
	flags, err := config.Output()
	if err != nil {
		t.Fatalf("pkg-config: %v", err)
	}
	names := []string{"-I" + prefix + "/include", "-L" + prefix + "/lib", "-lpreempt", "-lhalcuda", "-lhalhip", "-lshimcuda", "-lshimhip"}
	for _, c := range []struct {
		name, preload string
		flags         []string
	}{
		{"pkg-config, linked", "", append(strings.Fields(string(flags)), driver)},
		{"upstream's names, linked", "", append(names, driver)},
		{"upstream's names, preloaded", "libshimcuda.so", append([]string{driver}, names...)},
	} {
		t.Run(c.name, func(t *testing.T) {
			program := upstreamProgram(t, "gcc", "submit.c", "cuda.h", append([]string{"-std=c11", "-pedantic"}, c.flags...)...)
			w := *w
			w.t = t
			w.checkSubmit(w.startUpstream(program, c.preload, "virtual/libvgpu.so", "XSCHED_VGPU_SOCKET="+w.path("vgpu.sock")))
		})
	}
	t.Run("xsched run", func(t *testing.T) {
		program := upstreamProgram(t, "gcc", "submit.c", "cuda.h", append([]string{"-std=c11", driver}, names...)...)
		w := *w
		w.t = t
		w.checkSubmit(w.run(options{env: []string{"LD_PRELOAD=" + prefix + "/lib/libshimcuda.so"}}, program))
	})
}

// TestUpstreamOpenCL: a program makes an OpenCL command queue a queue of its own, and its hint is in force, whether the
// library is preloaded or only linked.
func TestUpstreamOpenCL(t *testing.T) {
	t.Parallel()
	if _, err := os.Stat("/usr/include/CL/cl.h"); err != nil {
		t.Skip("no OpenCL headers; run `make setup`")
	}
	prefix := prefixOf(t)
	out := filepath.Join(t.TempDir(), "program")
	args := []string{"-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", "testdata/upstream/opencl.c", "-I" + prefix + "/include", "-o", out, "-lOpenCL", "-L" + prefix + "/lib", "-lpreempt", "-lhalopencl"}
	if text, err := exec.Command("gcc", args...).CombinedOutput(); err != nil {
		t.Fatalf("gcc %v: %v\n%s", args, err, text)
	}
	w := newWorld(t)
	for name, preload := range map[string]string{"linked": "", "preloaded": prefix + "/lib/libshimopencl.so"} {
		t.Run(name, func(t *testing.T) {
			w := *w
			w.t = t
			cmd := exec.Command(out)
			cmd.Env = w.env("LD_PRELOAD="+preload, "LD_LIBRARY_PATH="+prefix+"/lib")
			p := w.drive(cmd)
			p.expect("submitted", soon)
			eventually(t, soon, "the hint is in force and launches are counted", func() bool {
				known := w.process(p.pid())
				return slices.Equal(priorities(known), []int{7}) && known.Counters.Launches >= 20
			})
			_ = p.in.Close()
			p.expect("commands 40", soon)
			if err := p.wait(soon); err != nil {
				t.Errorf("%v; stderr: %s", err, p.stderr())
			}
		})
	}
}

// TestUpstreamCMake: a CMake project finds the package of a staged installation, at the version and by the targets of
// upstream's documentation. Its program has one copy of the library and runs.
func TestUpstreamCMake(t *testing.T) {
	t.Parallel()
	prefix := prefixOf(t)
	if _, err := exec.LookPath("cmake"); err != nil {
		t.Skip("no cmake")
	}
	source, build := t.TempDir(), t.TempDir()
	project := `cmake_minimum_required(VERSION 3.14)
project(App C)
find_package(XSched 1.2.0 REQUIRED COMPONENTS cuda hip opencl HINTS "` + prefix + `/lib/cmake")
find_package(XSched QUIET COMPONENTS levelzero)
if(XSched_FOUND)
  message(FATAL_ERROR "a component that does not exist was found")
endif()
add_executable(app app.c)
target_link_libraries(app XSched::preempt XSched::halcuda)
`
	for name, text := range map[string]string{
		"CMakeLists.txt": project,
		"app.c":          "#include <xsched/xqueue.h>\n#include <xsched/cuda/hal.h>\nint main(void) { return XQueueDestroy(9) == kXSchedErrorNotFound ? 0 : 1; }\n",
	} {
		if err := os.WriteFile(filepath.Join(source, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, argv := range [][]string{
		{"cmake", "-S", source, "-B", build},
		{"cmake", "--build", build},
		{filepath.Join(build, "app")},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		if text, err := exec.CommandContext(ctx, argv[0], argv[1:]...).CombinedOutput(); err != nil {
			t.Errorf("%v: %v\n%s", argv, err, text)
		}
		cancel()
	}
}

// checkSubmit follows testdata/upstream/submit.c to its end.
func (w *world) checkSubmit(p *program) {
	w.t.Helper()
	p.expect("submitted", soon)
	eventually(w.t, soon, "the hint is in force", func() bool { return slices.Equal(priorities(w.process(p.pid())), []int{7}) })
	if found := shims(w.t, p.pid()); len(found) != 1 {
		w.t.Errorf("copies of the library: %v", found)
	}
	_ = p.in.Close()
	p.expect("platform 2, features 4, commands 40", soon)
	if err := p.wait(soon); err != nil {
		w.t.Errorf("%v; stderr: %s", err, p.stderr())
	}
}

// TestStagedFiles: DESTDIR is not part of what is installed, and the links do not leave their folder.
func TestStagedFiles(t *testing.T) {
	t.Parallel()
	prefixOf(t) // one make at a time
	dest := t.TempDir()
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	cmd := exec.CommandContext(ctx, "make", "-s", "-C", root, "install-dev", "DESTDIR="+dest, "PREFIX=/usr", "LIBDIR=/usr/lib/x86_64-linux-gnu", "VERSION=v1.2.3")
	if text, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	lib := filepath.Join(dest, "usr", "lib", "x86_64-linux-gnu")
	for _, name := range []string{"libxsched.so", "libpreempt.so", "libhalcuda.so", "libhalhip.so", "libshimcuda.so", "libshimhip.so"} {
		if to, err := os.Readlink(filepath.Join(lib, name)); err != nil || to != "libxsched.so.2" {
			t.Errorf("%s leads to %q, %v", name, to, err)
		}
	}
	text, err := os.ReadFile(filepath.Join(lib, "pkgconfig", "xsched.pc"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"prefix=/usr\n", "libdir=/usr/lib/x86_64-linux-gnu\n", "includedir=/usr/include\n", "Version: 1.2.3\n"} {
		if !strings.Contains(string(text), want) {
			t.Errorf("xsched.pc lacks %q:\n%s", want, text)
		}
	}
	if strings.Contains(string(text), dest) || strings.Contains(string(text), "@") {
		t.Errorf("xsched.pc:\n%s", text)
	}
	if _, err := os.Stat(filepath.Join(dest, "usr", "include", "xsched", "wire.h")); err == nil {
		t.Error("the wire contract is installed; programs must not use it")
	}
}
