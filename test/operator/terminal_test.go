// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// terminal is a window of tmux, a terminal emulator without a display.
type terminal struct {
	t       testing.TB
	socket  string
	pidFile string
}

// newTerminal runs a command in a terminal. When it ends, the terminal shows "ended", its exit code and
// the terminal's settings.
func newTerminal(t testing.TB, width, height int, env []string, command ...string) *terminal {
	t.Helper()
	if _, err := exec.LookPath("tmux"); err != nil {
		t.Skip("tmux is not installed; run `make setup`")
	}
	dir := t.TempDir()
	w := &terminal{t: t, socket: filepath.Join(dir, "tmux"), pidFile: filepath.Join(dir, "pid")}
	t.Cleanup(func() { _ = exec.Command("tmux", "-S", w.socket, "kill-server").Run() })
	script := fmt.Sprintf(`sh -c 'echo $$ >%s; exec "$@"' sh "$@"; echo ended $?; stty -a; exec sleep 1000`, w.pidFile)
	args := []string{"-S", w.socket, "-f", "/dev/null", "-u", "new-session", "-d", "-x", strconv.Itoa(width), "-y", strconv.Itoa(height)}
	for _, v := range append([]string{"LC_ALL=C.UTF-8"}, env...) {
		args = append(args, "-e", v)
	}
	args = append(append(args, "sh", "-c", script, "sh"), command...)
	if text, err := exec.Command("tmux", args...).CombinedOutput(); err != nil {
		t.Fatalf("tmux: %v\n%s", err, text)
	}
	return w
}

func (w *terminal) tmux(args ...string) string {
	w.t.Helper()
	text, err := exec.Command("tmux", append([]string{"-S", w.socket}, args...)...).CombinedOutput()
	if err != nil {
		w.t.Fatalf("tmux %s: %v\n%s", args, err, text)
	}
	return string(text)
}

// keys presses keys by their names in tmux.
func (w *terminal) keys(keys ...string) {
	w.t.Helper()
	w.tmux(append([]string{"send-keys", "--"}, keys...)...)
}

// screen is the text on the terminal, without trailing blanks. With more, it has the escape sequences too.
func (w *terminal) screen(more ...string) string {
	w.t.Helper()
	var b strings.Builder
	for line := range strings.Lines(w.tmux(append([]string{"capture-pane", "-p"}, more...)...)) {
		b.WriteString(strings.TrimRight(line, " \n") + "\n")
	}
	return b.String()
}

// shows waits for a text on the screen.
func (w *terminal) shows(text string) {
	w.t.Helper()
	last := ""
	defer func() {
		if w.t.Failed() {
			w.t.Logf("the screen:\n%s", last)
		}
	}()
	eventually(w.t, fmt.Sprintf("the terminal shows %q", text), func() bool {
		last = w.screen()
		return strings.Contains(last, text)
	})
}

// pid is the process of the command.
func (w *terminal) pid() (pid int) {
	w.t.Helper()
	eventually(w.t, "the command runs", func() bool {
		text, _ := os.ReadFile(w.pidFile)
		pid, _ = strconv.Atoi(strings.TrimSpace(string(text)))
		return pid > 0
	})
	return pid
}

// restored checks that the command ended and left the terminal as it found it.
func (w *terminal) restored(code int) {
	w.t.Helper()
	w.shows(fmt.Sprintf("ended %d\n", code))
	w.shows(" icanon ")
	screen := w.screen()
	for _, setting := range []string{" icanon ", " echo ", " isig ", " icrnl ", " opost "} {
		if !strings.Contains(strings.ReplaceAll(screen, "\n", " "), setting) {
			w.t.Errorf("the terminal has not%sin\n%s", setting, screen)
		}
	}
	if got := strings.TrimSpace(w.tmux("display-message", "-p", "#{alternate_on} #{cursor_flag} #{mouse_any_flag}")); got != "0 1 0" {
		w.t.Errorf("alternate screen, cursor, mouse: %s", got)
	}
}

// ends waits until a process is gone.
func ends(t testing.TB, pid int) {
	t.Helper()
	eventually(t, fmt.Sprintf("process %d ends", pid), func() bool { return errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) })
}

func itoa(n int) string { return strconv.Itoa(n) }
