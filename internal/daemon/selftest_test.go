// SPDX-License-Identifier: Apache-2.0

package daemon_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"xsched/internal/daemon"
	"xsched/internal/driver"
	"xsched/internal/driver/nvidia"
	"xsched/internal/embedded"
)

// Under a driver that needs the self-test, programs have level 1 until it passes. The daemon tests
// while the GPU is idle, detects a driver upgrade when a program connects, and picks up results of
// `xsched doctor --self-test`.
func TestLongSelfTestGivesLevels(t *testing.T) {
	program, err := embedded.Unpack(embedded.SelfTest)
	if err != nil {
		t.Skip(err)
	}
	w := newWorld(t)
	env := virtualEnv(t, w)
	load := func(version string) { t.Helper(); loadVersion(t, w.dir, version) }
	load("550.54.14")
	state := t.TempDir()
	test := func() (string, []string, error) { return program, env, nil }
	stop := w.serve(t, func(o *daemon.Options) { o.StateDir, o.Version, o.SelfTest = state, "1", test })
	await(t, "a result", func() bool {
		b, err := os.ReadFile(filepath.Join(state, "selftest.json"))
		return err == nil && strings.Contains(string(b), `"passed"`)
	})
	level := func(want int, reason string) func() bool {
		return func() bool {
			l, err := w.ctl.List(ctx)
			if err != nil || len(l.Processes) == 0 || len(l.Processes[0].Queues) == 0 {
				return false
			}
			q := l.Processes[0].Queues[0]
			return q.Level == want && strings.Contains(q.LevelReason, reason)
		}
	}
	first := startProgram(t, "app", w.vgpuPath(), w.sockPath())
	await(t, "level 3 by the daemon's own test", level(3, ""))
	_ = first.Process.Kill()
	await(t, "no process", func() bool { l, err := w.ctl.List(ctx); return err == nil && len(l.Processes) == 0 })

	load("560.28.03")
	startProgram(t, "app", w.vgpuPath(), w.sockPath())
	await(t, "level 1 under another driver", level(1, "driver 560.28.03 has not passed the self-test"))

	instance, err := nvidia.New().Open(driver.Options{
		Place: driver.Place{Virtual: true, Socket: w.vgpuPath()}, StateDir: state, Version: "1",
	})
	if err != nil {
		t.Fatal(err)
	}
	list, err := instance.(driver.SelfTester).SelfTest(ctx, driver.SelfTestOptions{Program: test})
	if err != nil || len(list) != 1 || list[0].Outcome != driver.OutcomePassed {
		t.Fatalf("%+v %v", list, err)
	}
	await(t, "level 3 by an external test", level(3, ""))
	if err := stop(); err != nil {
		t.Error(err)
	}
}
