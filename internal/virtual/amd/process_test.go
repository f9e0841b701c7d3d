// SPDX-License-Identifier: Apache-2.0

package vamd

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"xsched/internal/driver/amd/abi"
)

const (
	buildFlags = "-std=c11 -D_GNU_SOURCE -O2 -Wall -Wextra -Werror -I../../../shim -I../../../shim/include"
	sourceDir  = "../../../shim/virtual/"
)

// device is a virtual GPU served by this process, with the environment of its programs.
type device struct {
	kernel *Kernel
	socket string
	root   string
	env    []string
}

// serve starts a virtual GPU and builds its preload library.
func serve(t *testing.T, config Config) *device {
	t.Helper()
	if testing.Short() {
		t.Skip("builds C code and runs processes")
	}
	dir := t.TempDir()
	library := filepath.Join(dir, "libvkfd.so")
	compile(t, library, "-fPIC -shared -fvisibility=hidden", sourceDir+"libvkfd.c", "-ldl")
	d := &device{socket: filepath.Join(dir, "kfd.sock"), root: filepath.Join(dir, "root")}
	ctx, cancel := context.WithCancel(context.Background())
	ready, done := make(chan struct{}), make(chan error, 1)
	go func() {
		done <- Serve(ctx, Options{Socket: d.socket, Root: d.root, Config: config, Ready: func() { close(ready) }, Kernel: func(k *Kernel) { d.kernel = k }})
	}()
	select {
	case <-ready:
	case err := <-done:
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	d.env = append(os.Environ(), "XSCHED_VKFD_SOCKET="+d.socket, "XSCHED_VKFD_ROOT="+d.root, "LD_PRELOAD="+library)
	return d
}

func compile(t *testing.T, target, flags string, sources ...string) {
	t.Helper()
	args := append(strings.Fields(buildFlags+" "+flags), "-o", target)
	out, err := exec.Command("gcc", append(args, sources...)...).CombinedOutput()
	if err != nil {
		t.Fatalf("build %s: %v\n%s", target, err, out)
	}
}

// command prepares a program on the virtual GPU; it ends with the test.
func (d *device) command(t *testing.T, name string, args ...string) *exec.Cmd {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = d.env
	return cmd
}

func needThunk(t *testing.T) {
	t.Helper()
	if linksThunk() {
		return
	}
	if os.Getenv("XSCHED_CI") == "1" {
		t.Fatal("CI needs libhsakmt-dev; apt-get install libhsakmt-dev")
	}
	t.Skip("no libhsakmt here; apt-get install libhsakmt-dev")
}

// thunkConfig is a gfx90a, the newest GPU whose save area Debian's libhsakmt can size.
func thunkConfig() Config {
	config := DefaultConfig()
	config.GFX = 90010
	return config
}

// TestOwner puts the shim's observer between the thunk and the virtual GPU.
func TestOwner(t *testing.T) {
	needThunk(t)
	d := serve(t, thunkConfig())
	program := filepath.Join(t.TempDir(), "owner")
	sources := []string{"../../../shim/driver/kfd/test_owner.c"}
	for _, folder := range []string{"core", "driver", "driver/rm", "driver/kfd"} {
		all, err := filepath.Glob("../../../shim/" + folder + "/*.c")
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range all {
			base := filepath.Base(name)
			above := strings.HasPrefix(base, "work") || strings.HasPrefix(base, "move")
			if !above && !strings.HasPrefix(base, "test_") {
				sources = append(sources, name)
			}
		}
	}
	compile(t, program, "-rdynamic", append(sources, "-lhsakmt", "-ldl", "-lpthread")...)
	out, err := d.command(t, program).CombinedOutput()
	if err != nil || !strings.Contains(string(out), "ok owner") {
		t.Fatalf("%v\n%s", err, out)
	}
}

// TestThunk runs AMD's libhsakmt on the virtual GPU.
func TestThunk(t *testing.T) {
	program := filepath.Join(t.TempDir(), "hsakmt")
	needThunk(t)
	d := serve(t, thunkConfig())
	compile(t, program, "", sourceDir+"test_hsakmt.c", "-lhsakmt")
	out, err := d.command(t, program).CombinedOutput()
	if err != nil || !strings.Contains(string(out), "ok hsakmt") {
		t.Fatalf("%v\n%s", err, out)
	}
	t.Logf("%s", out)
}

func linksThunk() bool {
	cmd := exec.Command("gcc", "-x", "c", "-include", "hsakmt.h", "-o", os.DevNull, "-", "-lhsakmt")
	cmd.Stdin = strings.NewReader("int main(void) { return hsaKmtOpenKFD(); }")
	return cmd.Run() == nil
}

// TestSequence runs the C tests of requests through the preloaded library.
func TestSequence(t *testing.T) {
	program := filepath.Join(t.TempDir(), "sequence")
	d := serve(t, DefaultConfig())
	compile(t, program, "", sourceDir+"test_kfd.c")
	out, err := d.command(t, program).CombinedOutput()
	if err != nil || !strings.Contains(string(out), "ok kfd") {
		t.Fatalf("%v\n%s", err, out)
	}
}

func TestSysfsFollows(t *testing.T) {
	d := serve(t, DefaultConfig())
	p := d.kernel.Open(os.Getpid(), "test")
	d.kernel.mu.Lock()
	p.queues = append(p.queues, &queue{id: 3, gpu: gpuID(0), kind: abi.KFD_IOC_QUEUE_TYPE_SDMA, bytes: 4096})
	d.kernel.system.Changed(p)
	d.kernel.mu.Unlock()
	b, err := os.ReadFile(filepath.Join(d.root, sysfsFolder, "proc", fmt.Sprint(os.Getpid()), "queues/3/type"))
	if err != nil || string(b) != "1" { // no newline, as the driver
		t.Errorf("%q %v", b, err)
	}
	d.kernel.Exit(os.Getpid())
	if _, err := os.Stat(filepath.Join(d.root, sysfsFolder, "proc", fmt.Sprint(os.Getpid()))); err == nil {
		t.Error("an ended process is still shown")
	}
}
