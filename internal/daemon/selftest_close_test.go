// SPDX-License-Identifier: Apache-2.0

package daemon_test

import (
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"xsched/internal/daemon"
	"xsched/internal/driver"
	"xsched/internal/driver/nvidia"
	"xsched/internal/embedded"
)

// A self-test that does not end delays neither the resumption of programs nor, without limit, the
// end of the daemon.
func TestStuckSelfTestDoesNotBlockClose(t *testing.T) {
	w := newWorld(t)
	loadVersion(t, w.dir, "550.54.14")
	entered, release := make(chan struct{}), make(chan struct{})
	defer close(release)
	stop := w.serve(t, func(o *daemon.Options) {
		o.SelfTest = func() (string, []string, error) {
			close(entered)
			<-release
			return "", nil, os.ErrNotExist
		}
	})
	startProgram(t, "app", w.vgpuPath(), w.sockPath())
	await(t, "a session", func() bool { l, err := w.ctl.List(ctx); return err == nil && len(l.Processes) == 1 })
	<-entered
	done := make(chan error, 1)
	go func() { done <- stop() }()
	// The sessions close before the daemon waits for the test.
	await(t, "a closed client socket", func() bool {
		c, err := net.Dial("unixpacket", w.sockPath())
		if err == nil {
			_ = c.Close()
		}
		return err != nil
	})
	select {
	case <-done:
		t.Error("the sessions were closed after the wait")
	default:
	}
	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("Close waits for the test")
	}
}

// With self-tests disabled, a connected program still gains its level from `xsched doctor
// --self-test`, even if another program joins between the result and the daemon's next look.
func TestLongResultReachesConnectedProgram(t *testing.T) {
	program, err := embedded.Unpack(embedded.SelfTest)
	if err != nil {
		t.Skip(err)
	}
	w := newWorld(t)
	loadVersion(t, w.dir, "550.54.14")
	state := t.TempDir()
	w.serve(t, func(o *daemon.Options) { o.StateDir, o.Version = state, "1" })
	first := startProgram(t, "app", w.vgpuPath(), w.sockPath())
	level := func(want int) func() bool {
		return func() bool {
			l, err := w.ctl.List(ctx)
			if err != nil {
				return false
			}
			for _, p := range l.Processes {
				if p.PID == first.Process.Pid {
					return len(p.Queues) > 0 && p.Queues[0].Level == want
				}
			}
			return false
		}
	}
	await(t, "level 1", level(1))
	place := driver.Place{Virtual: true, Socket: w.vgpuPath()}
	i, err := nvidia.New().Open(driver.Options{Place: place, StateDir: state, Version: "1"})
	if err != nil {
		t.Fatal(err)
	}
	env := virtualEnv(t, w)
	list, err := i.(driver.SelfTester).SelfTest(ctx, driver.SelfTestOptions{
		Program: func() (string, []string, error) { return program, env, nil },
	})
	if err != nil || len(list) != 1 || list[0].Outcome != driver.OutcomePassed {
		t.Fatalf("%+v %v", list, err)
	}
	startProgram(t, "app", w.vgpuPath(), w.sockPath())
	await(t, "level 3", level(3))
}

// loadVersion sets the version of the virtual GPU's driver.
func loadVersion(t *testing.T, dir, version string) {
	t.Helper()
	dir = filepath.Join(dir, "sys/module/nvidia")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "version"), []byte(version), 0o644); err != nil {
		t.Fatal(err)
	}
}

// virtualEnv returns the environment of a program on the virtual GPU.
func virtualEnv(t *testing.T, w *world) []string {
	t.Helper()
	paths := map[string]string{}
	for _, name := range []string{embedded.VirtualRM, embedded.VirtualCUDA} {
		path, err := embedded.Unpack(name)
		if err != nil {
			t.Skip(err)
		}
		paths[name] = path
	}
	return []string{
		"LD_PRELOAD=" + paths[embedded.VirtualRM], "LD_LIBRARY_PATH=" + filepath.Dir(paths[embedded.VirtualCUDA]),
		"XSCHED_VGPU_SOCKET=" + w.vgpuPath(),
	}
}
