// SPDX-License-Identifier: Apache-2.0

package window_test

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"

	"xsched/internal/window"
	"xsched/internal/window/windowtest"
)

func TestMain(m *testing.M) {
	windowtest.Main()
	os.Exit(m.Run())
}

// shown is a window of a program, and the process that runs in it.
type shown struct {
	id  uint32
	pid int
}

// program starts this binary as a program with windows that runs sleep.
func program(t *testing.T, s *windowtest.Server, windows int, env ...string) (list []shown, leader int) {
	t.Helper()
	cmd := exec.Command(os.Args[0], "sleep", "600")
	cmd.Env = append(append(os.Environ(), "DISPLAY="+s.Name), env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	lines := bufio.NewScanner(out)
	for len(list) < windows && lines.Scan() {
		var w shown
		if _, err := fmt.Sscanf(lines.Text(), "W %d %d", &w.id, &w.pid); err != nil {
			t.Fatalf("%q: %v", lines.Text(), err)
		}
		list = append(list, w)
	}
	if len(list) < windows {
		t.Fatal("the program has not opened its windows")
	}
	return list, cmd.Process.Pid
}

func open(t *testing.T, s *windowtest.Server) *window.Display {
	t.Helper()
	d, err := window.Open(s.Name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Close)
	return d
}

// scene is a display with programs on it.
type scene struct {
	t        *testing.T
	client   *windowtest.Client
	display  *window.Display
	programs []int
}

// activate makes a window active and waits until exactly these programs belong to the active window.
func (s *scene) activate(id uint32, want ...int) {
	s.t.Helper()
	s.client.Activate(id, "the window manager activates the window", func() bool {
		state, err := s.display.State(false)
		return err == nil && len(state.Active) > 0 && uint32(state.Active[0]) == id && s.belongNow(want)
	})
}

// belong waits until exactly these programs belong to the active window.
func (s *scene) belong(want ...int) {
	s.t.Helper()
	windowtest.Eventually(s.t, fmt.Sprintf("programs %v belong to the active window", want), func() bool { return s.belongNow(want) })
}

func (s *scene) belongNow(want []int) bool {
	s.t.Helper()
	state, err := s.display.State(false)
	if err != nil {
		s.t.Fatal(err)
	}
	got := window.Members(s.display.Name(), &state, s.programs, window.Host())
	slices.Sort(got)
	slices.Sort(want)
	return slices.Equal(got, want)
}

// TestWindows checks which programs belong to the active window, with real windows and processes. The
// window manager changes the active window.
func TestWindows(t *testing.T) {
	t.Parallel()
	s := windowtest.Start(t)
	stop := s.Manage()
	c, d := windowtest.Connect(t, s.Name), open(t, s)
	ownWindows, own := program(t, s, 1, windowtest.Own())
	tabs, terminal := program(t, s, 2, windowtest.Terminal(2))
	on := scene{t, c, d, []int{own, tabs[0].pid, tabs[1].pid, terminal, os.Getpid()}}

	on.activate(ownWindows[0].id, own)
	// One process shows both windows. The terminal itself belongs to both.
	on.activate(tabs[0].id, tabs[0].pid, terminal)
	on.activate(tabs[1].id, tabs[1].pid, terminal)

	// A change arrives as a signal.
	select {
	case <-d.Changes():
	default:
	}
	on.activate(ownWindows[0].id, own)
	<-d.Changes()

	// A dialog of another process, as that of a file chooser, is part of the program.
	dialog := c.Window("dialog")
	c.SetNumbers(dialog, "WM_TRANSIENT_FOR", "WINDOW", ownWindows[0].id)
	on.activate(dialog, own, os.Getpid())
	// A circle of dialogs ends.
	c.SetNumbers(ownWindows[0].id, "WM_TRANSIENT_FOR", "WINDOW", dialog)
	on.belong(own, os.Getpid())
	c.Destroy(dialog)

	// The desktop is no program, though this process owns it.
	desktop := c.Window("desktop")
	c.SetAtom(desktop, "_NET_WM_WINDOW_TYPE", "_NET_WM_WINDOW_TYPE_DESKTOP")
	on.activate(desktop)
	c.Destroy(desktop)

	// Nor is a window that the window manager does not list, as that of a Wayland compositor.
	on.activate(ownWindows[0].id, own)
	hidden := c.Hidden()
	windowtest.Eventually(t, "no program belongs to an unlisted window", func() bool {
		c.Claim(hidden)
		return on.belongNow(nil)
	})

	// A window manager that was killed leaves its last word behind.
	c.Claim(ownWindows[0].id)
	on.belong(own)
	stop()
	c.Focus(tabs[1].id)
	on.belong(tabs[1].pid, terminal)
	if state, err := d.State(false); err != nil || state.Manager {
		t.Errorf("a window manager after its end: %+v, %v", state, err)
	}
	c.Focus(0)
	on.belong()
	s.Manage()
	on.activate(tabs[0].id, tabs[0].pid, terminal)

	s.Kill()
	for range d.Changes() { // closes
	}
	if _, err := d.State(false); !errors.Is(err, window.ErrClosed) {
		t.Errorf("after the server's end: %v", err)
	}
	if _, err := window.Open(":60000"); err == nil || !strings.Contains(err.Error(), ":60000") {
		t.Errorf("opened a display without a server: %v", err)
	}
}

// TestNestedPrograms checks that a program with a window of its own, started in a terminal, does not
// belong to the terminal.
func TestNestedPrograms(t *testing.T) {
	t.Parallel()
	s := windowtest.Start(t)
	s.Manage()
	c, d := windowtest.Connect(t, s.Name), open(t, s)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	// The outer program starts a shell, which starts a job and the inner program.
	script := fmt.Sprintf("sleep 600 & echo J $!; %s %s sleep 600", windowtest.Own(), self)
	cmd := exec.Command(self, "sh", "-c", script)
	cmd.Env = append(os.Environ(), "DISPLAY="+s.Name, windowtest.Terminal(1))
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		_ = cmd.Wait()
	})
	var outer, inner shown
	job, found := 0, 0
	for lines := bufio.NewScanner(out); found < 3 && lines.Scan(); found++ {
		text := lines.Text()
		if _, err := fmt.Sscanf(text, "J %d", &job); err == nil {
			continue
		}
		var w shown
		if _, err := fmt.Sscanf(text, "W %d %d", &w.id, &w.pid); err != nil {
			t.Fatalf("%q: %v", text, err)
		}
		if outer.pid == 0 && window.Host().Parent(w.pid) == cmd.Process.Pid {
			outer = w
		} else {
			inner = w
		}
	}
	on := scene{t, c, d, []int{outer.pid, inner.pid, job}}
	on.activate(inner.id, inner.pid)
	on.activate(outer.id, outer.pid, job)
}

// TestUnknownProcess checks windows of a server that does not know the processes of its clients.
func TestUnknownProcess(t *testing.T) {
	t.Parallel()
	s := windowtest.Start(t, "-extension", "X-Resource")
	s.Manage()
	c, d := windowtest.Connect(t, s.Name), open(t, s)
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	w := c.Window("w")
	find := func() window.Window {
		var found window.Window
		windowtest.Eventually(t, "the window is listed", func() bool {
			state, err := d.State(true)
			if err != nil {
				t.Fatal(err)
			}
			i := slices.IndexFunc(state.Windows, func(other window.Window) bool { return uint32(other.ID) == w })
			if i >= 0 {
				found = state.Windows[i]
			}
			return i >= 0
		})
		return found
	}
	if got := find(); got.PID != 0 || got.Reason == "" || got.Title != "w" {
		t.Errorf("without a PID: %+v", got)
	}
	c.SetNumbers(w, "_NET_WM_PID", "CARDINAL", uint32(os.Getpid()))
	if got := find(); got.PID != 0 || got.Reason == "" {
		t.Errorf("without a host: %+v", got)
	}
	c.SetText(w, "WM_CLIENT_MACHINE", "elsewhere")
	if got := find(); got.PID != 0 || !strings.Contains(got.Reason, "elsewhere") {
		t.Errorf("on another host: %+v", got)
	}
	on := scene{t, c, d, []int{os.Getpid()}}
	on.activate(w)
	c.SetText(w, "WM_CLIENT_MACHINE", host)
	if got := find(); got.PID != os.Getpid() || got.Reason != "" {
		t.Errorf("on this host: %+v", got)
	}
	on.belong(os.Getpid())
	c.SetNumbers(w, "_NET_WM_PID", "CARDINAL", 0xffffffff)
	if got := find(); got.PID != 0 {
		t.Errorf("with an impossible PID: %+v", got)
	}
}
