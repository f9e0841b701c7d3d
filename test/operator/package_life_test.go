// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"xsched/internal/control/client"
	vdevice "xsched/internal/virtual/device"
	gpumodel "xsched/internal/virtual/model"
)

// load is a tenant in the machine.
type load struct {
	m     *machine
	cmd   *exec.Cmd
	in    io.WriteCloser
	lines chan string
}

const newcomer = 1000 // a user who is not root

// load starts the load generator as a user who is not root.
func (m *machine) load(name string, kernelUS string, flags ...string) *load {
	m.t.Helper()
	argv := append(append([]string{"xsched", "run", "--virtual"}, flags...), "--", "/opt/tenant", "--name", name, "--kernel-us", kernelUS)
	l := &load{m: m, cmd: m.command(newcomer, argv...), lines: make(chan string, 1<<16)}
	var err error
	if l.in, err = l.cmd.StdinPipe(); err != nil {
		m.t.Fatal(err)
	}
	out, err := l.cmd.StdoutPipe()
	if err != nil {
		m.t.Fatal(err)
	}
	l.cmd.Stderr = os.Stderr
	start(m.t, l.cmd)
	go func() {
		defer close(l.lines)
		for scan := bufio.NewScanner(out); scan.Scan(); {
			if line := scan.Text(); !strings.HasPrefix(line, "I ") {
				l.lines <- line
			}
		}
	}()
	l.expect("R")
	return l
}

func (l *load) expect(prefix string) string {
	l.m.t.Helper()
	for {
		select {
		case line, open := <-l.lines:
			if !open {
				l.m.t.Fatalf("the program ended before it said %s", prefix)
			}
			if strings.HasPrefix(line, prefix) {
				return line
			}
		case <-time.After(patience):
			l.m.t.Fatalf("the program never said %s", prefix)
		}
	}
}

func (l *load) send(line string) {
	l.m.t.Helper()
	if _, err := io.WriteString(l.in, line+"\n"); err != nil {
		l.m.t.Fatal(err)
	}
}

// finish ends the program: what the GPU computed is what its launches ask for, no more and no less.
func (l *load) finish() {
	l.m.t.Helper()
	l.send("pause")
	l.expect("P")
	l.send("report")
	sum := strings.Fields(l.expect("S "))
	if len(sum) != 4 || sum[1] == "0" || sum[2] != sum[3] {
		l.m.t.Errorf("launches, result and expected result: %v", sum)
	}
	_ = l.in.Close()
	if err := l.cmd.Wait(); err != nil {
		l.m.t.Errorf("the program: %v", err)
	}
}

// nativeSlice is the timeslice of a program that nobody manages.
const nativeSlice = 2 * time.Millisecond

// protected waits until low has the tiny timeslice of a program below another one, and yields.
func (m *machine) protected(gpu *vdevice.Client, c *client.Client, low *load) {
	m.t.Helper()
	account := func() gpumodel.Account {
		stats, err := gpu.Stats()
		if err != nil {
			m.t.Fatal(err)
		}
		a, _ := stats.Client(low.cmd.Process.Pid)
		return a
	}
	eventually(m.t, "both programs joined", func() bool {
		list, err := c.List(context.Background())
		return err == nil && len(list.Processes) == 2
	})
	eventually(m.t, "the job has a tiny timeslice", func() bool { return account().SliceNS < nativeSlice.Nanoseconds() })
	before := account().Preemptions
	eventually(m.t, "the job yields", func() bool { return account().Preemptions > before })
}

// systemctl stands in for the service manager: it records what the package's scripts ask for.
const systemctl = "#!/bin/sh\necho \"$*\" >> /run/systemctl.log\n"

// asked returns what the scripts asked for since the last time.
func (m *machine) asked() []string {
	m.t.Helper()
	text, _ := os.ReadFile(m.path("run/systemctl.log"))
	_ = os.Remove(m.path("run/systemctl.log"))
	return strings.FieldsFunc(string(text), func(r rune) bool { return r == '\n' })
}

// TestLongPackageLife: install, start by the unit, protect a program, upgrade and downgrade under load,
// remove and purge, in a minimal Debian. Nobody loses work, and nothing is left behind.
func TestLongPackageLife(t *testing.T) {
	v := version(t)
	m := enterMachine(t, func() {
		packages(t, "first", v)
		packages(t, "next", next)
	})
	if m == nil {
		return
	}
	m.copyIn(one(t, filepath.Join(root, "build/packages/first/*.deb")), "tmp/first.deb")
	m.copyIn(one(t, filepath.Join(root, "build/packages/next/*.deb")), "tmp/next.deb")
	m.copyIn(product(t, "build/virtual/tenant"), "opt/tenant")
	m.run(0, "ldconfig")
	before := m.files()

	// Without a service manager the package installs files and starts nothing.
	m.run(0, "dpkg", "-i", "/tmp/first.deb")
	if got := m.run(newcomer, "xsched", "--version"); !strings.HasPrefix(got, "xsched "+v) {
		t.Errorf("installed %s", got)
	}
	if got := m.run(newcomer, "ldconfig", "-p"); !strings.Contains(got, "libxsched.so.2 ") {
		t.Error("the loader does not know the library")
	}
	m.checkUnits()

	// Start as the units say.
	vgpu := m.command(0, "xsched", "vgpu", "--socket", "/run/xsched/vgpu.sock", "--devices", "1")
	guardian, daemon := m.unit("xsched-guardian.service"), m.unit("xsched.service")
	guardian.start()
	start(t, vgpu)
	var gpu *vdevice.Client
	eventually(t, "the virtual GPU answers", func() (answers bool) {
		var err error
		gpu, err = vdevice.Dial(m.path("run/xsched/vgpu.sock"))
		return err == nil
	})
	daemon.start("--virtual")
	daemon.await("WATCHDOG=1")
	daemon.await("WATCHDOG=1") // a second time: the engine made progress
	c := client.New(m.path("run/xsched/control.sock"))

	low, high := m.load("train", "5000", "--priority", "-10"), m.load("serve", "500")
	low.send("loop")
	high.send("rate 20")
	m.protected(gpu, c, low)

	// From here on there is a service manager.
	if err := os.MkdirAll(m.path("run/systemd/system"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(m.path("usr/local/bin/systemctl"), []byte(systemctl), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct{ deb, version string }{{"/tmp/next.deb", next}, {"/tmp/first.deb", v}} {
		m.run(0, "dpkg", "-i", step.deb)
		if got, want := m.asked(), []string{"daemon-reload", "try-restart xsched.service"}; !slices.Equal(got, want) {
			t.Errorf("the scripts of %s asked for %q, not %q", step.deb, got, want)
		}
		daemon.stop()
		c.Close()
		daemon.start("--virtual")
		running, err := c.Version(context.Background())
		if err != nil || !strings.HasPrefix(running.Version, step.version) {
			t.Errorf("runs %v, %v", running, err)
		}
		m.protected(gpu, c, low)
	}
	low.finish()
	high.finish()
	daemon.stop()
	c.Close()
	guardian.stop()
	_ = vgpu.Process.Kill()

	// Removal keeps configuration, state and audit log, purge nothing.
	m.run(0, "dpkg", "--remove", "xsched")
	if got, want := m.asked(), []string{"disable --now xsched.service xsched-guardian.service", "daemon-reload"}; !slices.Equal(got, want) {
		t.Errorf("the scripts asked for %q, not %q", got, want)
	}
	if err := os.Remove(m.path("usr/local/bin/systemctl")); err != nil {
		t.Fatal(err)
	}
	added, gone := changed(before, m.files())
	added = slices.DeleteFunc(added, func(path string) bool {
		return strings.HasPrefix(path, "/etc/xsched/") || strings.HasPrefix(path, "/var/lib/xsched/") || strings.HasPrefix(path, "/var/log/xsched/")
	})
	if len(added)+len(gone) > 0 {
		t.Errorf("after removal: left behind %v, gone %v", added, gone)
	}
	m.run(0, "dpkg", "--purge", "xsched")
	if added, gone := changed(before, m.files()); len(added)+len(gone) > 0 {
		t.Errorf("after purge: left behind %v, gone %v", added, gone)
	}
	if _, err := os.Stat(m.path("run/xsched")); err == nil {
		t.Error("/run/xsched is left behind")
	}
}

// checkUnits lets systemd read the installed units, and judge the sandbox of the services.
func (m *machine) checkUnits() {
	m.t.Helper()
	units := []string{"xsched.service", "xsched-guardian.service", "xsched-guardian.slice"}
	if got := m.run(0, append([]string{"systemd-analyze", "verify", "--man=no"}, units...)...); got != "" {
		m.t.Errorf("systemd-analyze verify: %s", got)
	}
	for _, name := range units[:2] {
		// Of 10.0, which is a service without any protection.
		m.run(0, "systemd-analyze", "security", "--no-pager", "--offline=yes", "--threshold=50", "/usr/lib/systemd/system/"+name)
	}
}

// TestLongQuickStart is a new user's first minutes in a minimal Debian: install the package, start the
// service, then what quickstart.sh does without root. The log has the commands, their output and times.
func TestLongQuickStart(t *testing.T) {
	m := enterMachine(t, func() { packages(t, "first", version(t)) })
	if m == nil {
		return
	}
	m.copyIn(one(t, filepath.Join(root, "build/packages/first/*.deb")), "tmp/xsched.deb")
	m.copyIn("quickstart.sh", "opt/quickstart.sh")
	for name, does := range map[string]string{"train": "loop", "serve": "rate 50"} {
		kernel := map[string]string{"train": "5000", "serve": "500"}[name]
		m.copyIn(product(t, "build/virtual/tenant"), "usr/local/bin/"+name)
		// The program itself gets the signal that ends it; its input stays open.
		text := "#!/bin/sh\nmkfifo $HOME/" + name + "\n{ echo " + does + "; exec sleep 600; } >$HOME/" + name + " 2>/dev/null &\n" +
			"exec " + name + " --kernel-us " + kernel + " <$HOME/" + name + " >/dev/null\n"
		if err := os.WriteFile(m.path("opt/"+name), []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	began := time.Now()
	var transcript strings.Builder
	step := func(command string) {
		fmt.Fprintf(&transcript, "[%5.1f s] # %s\n", time.Since(began).Seconds(), command)
	}
	step("dpkg -i xsched.deb")
	transcript.WriteString(m.run(0, "dpkg", "-i", "/tmp/xsched.deb"))
	step("systemctl enable --now xsched        (its command, with --virtual)")
	daemon := m.unit("xsched.service")
	daemon.start("--virtual")
	out := m.run(newcomer, "TRAIN=/opt/train", "SERVE=/opt/serve", fmt.Sprintf("BEGAN=%d", began.UnixMilli()), "/opt/quickstart.sh")
	spent := time.Since(began)
	t.Logf("a new user's first minutes, %.1f s in all:\n%s%s", spent.Seconds(), transcript.String(), out)
	if spent >= 300*time.Second {
		t.Errorf("%s; five minutes must suffice", spent)
	}
	for _, want := range []string{`policy HPF`, `programs +2: `, `\$ xsched top`, `\$ kill`} {
		if !regexp.MustCompile(want).MatchString(out) {
			t.Errorf("the output lacks %q", want)
		}
	}
	if !regexp.MustCompile(`preemption  serve (preempted|ran before) train `).MatchString(out) {
		t.Error("the journal does not say that the service came before the job")
	}
	daemon.stop()
}
