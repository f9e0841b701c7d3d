// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"xsched/internal/control"

	"xsched/internal/screen"
)

var update = flag.Bool("update", false, "write the golden screens")

// masks hide what differs from run to run.
var masks = []struct {
	pattern *regexp.Regexp
	by      string
}{
	{regexp.MustCompile(`0000:[0-9a-f]{2}:00\.0`), "GPU"},
	{regexp.MustCompile(`[▁▂▃▄▅▆▇█░]+`), "BAR"},
	{regexp.MustCompile(`\b(running|idle|waiting|preempted)\b`), "STATE"},
	{regexp.MustCompile(`-?\b[0-9]+(\.[0-9]+)*(us|ms|s|m|h|k|%)?( met| miss)?(\+[0-9a-z.-]+)?`), "N"},
}

// masked replaces values, and the user, by letters.
func masked(text, user string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		for _, m := range masks {
			line = m.pattern.ReplaceAllString(line, m.by)
		}
		var words []string
		for word := range strings.FieldsSeq(line) {
			if word == user || word == "-" { // not known yet
				word = "N"
			}
			words = append(words, word)
		}
		b.WriteString(strings.Join(words, " ") + "\n")
	}
	return b.String()
}

// golden waits until the masked screen is the one of a file.
func (w *terminal) golden(name string) {
	w.t.Helper()
	me, err := user.Current()
	if err != nil {
		w.t.Fatal(err)
	}
	file := filepath.Join("testdata", name+".txt")
	want, err := os.ReadFile(file)
	if err != nil && !*update {
		w.t.Fatal(err)
	}
	last := ""
	defer func() {
		if w.t.Failed() {
			w.t.Logf("%s differs; run with -update if that is right\ngot\n%s\nscreen\n%s\nwant\n%s", name, last, w.screen(), want)
		}
	}()
	if *update {
		if err := os.WriteFile(file, []byte(head(masked(w.screen(), me.Username))), 0o644); err != nil {
			w.t.Fatal(err)
		}
		return
	}
	eventually(w.t, "the screen of "+file, func() bool {
		last = head(masked(w.screen(), me.Username))
		return last == string(want)
	})
}

// fits checks that no line is wider than the terminal, and that the title is still there.
func (w *terminal) fits(width int) {
	w.t.Helper()
	text := w.screen()
	for line := range strings.Lines(text) {
		if n := screen.Width(strings.TrimSuffix(line, "\n")); n > width {
			w.t.Errorf("%d columns: %q", n, line)
		}
	}
	if !strings.HasPrefix(text, "xsched") {
		w.t.Errorf("the screen scrolled:\n%s", text)
	}
}

// head keeps the part of a screen that has no details of one tenant, whose line breaks depend on values.
func head(text string) string {
	lines := strings.SplitAfter(text, "\n")
	return strings.Join(append(lines[:min(10, len(lines))], lines[max(0, len(lines)-3):]...), "")
}

// TestLongTop steers a daemon through a real terminal, beside a tenant with a hostile name.
func TestLongTop(t *testing.T) {
	d := newDaemon(t)
	load := product(t, "build/virtual/tenant")
	dir, err := os.MkdirTemp("", "x")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	hostile := filepath.Join(dir, "漢\x1b[2J\u009b2Jred\n字\xff\u0301\u0301\u0301\u202E")
	if err := os.Symlink(load, hostile); err != nil {
		t.Fatal(err)
	}
	serve := d.tenant(load, 2000, "--priority", "5", "--slo", "500ms")
	serve.tell(t, "rate 20")
	train := d.tenant(load, 5000, "--priority", "-5")
	train.tell(t, "loop")
	evil := d.tenant(hostile, 5000)
	// Wide PIDs must not change which columns fit.
	wide := max(len(itoa(max(serve.pid(), train.pid(), evil.pid()))), 5) - 5

	w := newTerminal(t, 80+wide, 24, d.env()[len(os.Environ()):], product(t, "bin/xsched"), "top", "--interval", "200ms")
	w.shows("漢")
	w.shows("LAST")
	w.golden("top-80x24")
	w.fits(80 + wide)
	w.tmux("resize-window", "-x", itoa(40+wide), "-y", "24")
	eventually(t, "the view has 40 columns", func() bool { return !strings.Contains(w.screen(), "PRIO") })
	w.golden("top-40x24")
	w.fits(40 + wide)
	w.tmux("resize-window", "-x", itoa(80+wide), "-y", "24")
	w.shows("PRIO")
	w.keys("Down")
	w.shows("漢 [2J?2Jred")
	w.keys("Up")
	if colours := w.screen("-e"); !strings.Contains(colours, "\x1b[3") || strings.Contains(colours, "38;") {
		t.Errorf("not the terminal's own colours: %q", colours)
	}

	t.Run("priority", func(t *testing.T) {
		w.keys("+", "+")
		eventually(t, "the priority rises by two", func() bool { return d.process(serve.pid()).Priority == 7 })
		w.keys("-")
		eventually(t, "the priority sinks by one", func() bool { return d.process(serve.pid()).Priority == 6 })
	})
	t.Run("suspend and resume", func(t *testing.T) {
		w.keys("End")
		w.keys("s")
		eventually(t, "the job is held", func() bool { return d.process(train.pid()).Held })
		w.shows("held")
		w.keys("r")
		eventually(t, "the job is not held", func() bool { return !d.process(train.pid()).Held })
	})
	t.Run("refused", func(t *testing.T) {
		if text, err := d.command("hint", itoa(train.pid()), "--priority", "255").CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		w.keys("Home")
		eventually(t, "the job is selected and at the top", func() bool {
			w.keys("Home")
			return regexp.MustCompile(`(?m)^` + itoa(train.pid()) + ` .*\n.*priority 255`).MatchString(w.screen())
		})
		w.keys("+")
		w.shows("refused: ")
	})
	t.Run("policy", func(t *testing.T) {
		policy := func() string {
			reply, err := d.client.Policy(context.Background())
			if err != nil {
				t.Fatal(err)
			}
			return reply.Name
		}
		before := policy()
		w.keys("p")
		w.shows("Switch the policy to:")
		w.keys("Down", "Enter")
		w.shows("? y/n")
		w.keys("n")
		w.shows("the policy is unchanged")
		if policy() != before {
			t.Error("changed without confirmation")
		}
		w.keys("p")
		w.shows("Switch the policy to:")
		w.keys("Down", "Enter")
		w.shows("? y/n")
		w.keys("y")
		eventually(t, "the policy changes", func() bool { return policy() != before })
		w.shows("policy is " + policy())
	})
	t.Run("filter", func(t *testing.T) {
		w.keys("/", "漢", "Enter")
		w.shows("programs 1 of 3")
		w.keys("Escape")
		w.shows("programs 3")
	})
	t.Run("restart", func(t *testing.T) {
		d.kill()
		w.shows("daemon lost, retrying: ")
		d.start()
		w.shows("the daemon was restarted (PID " + itoa(d.cmd.Process.Pid) + ")")
		w.shows("programs 3") // they reconnected
	})
	w.fits(80 + wide)
	w.keys("q")
	w.restored(0)
}

// TestLongTopEnds checks that the terminal is restored by whatever ends the view.
func TestLongTopEnds(t *testing.T) {
	d := newDaemon(t)
	for name, end := range map[string]func(*terminal){
		"ctrl-c":  func(w *terminal) { w.keys("C-c") },
		"SIGTERM": func(w *terminal) { _ = syscall.Kill(w.pid(), syscall.SIGTERM) },
		"SIGHUP":  func(w *terminal) { _ = syscall.Kill(w.pid(), syscall.SIGHUP) },
		"SIGINT":  func(w *terminal) { _ = syscall.Kill(w.pid(), syscall.SIGINT) },
	} {
		t.Run(name, func(t *testing.T) {
			w := newTerminal(t, 80, 24, d.env()[len(os.Environ()):], product(t, "bin/xsched"), "top")
			w.shows("no programs")
			end(w)
			w.restored(0)
		})
	}
	t.Run("closed terminal", func(t *testing.T) {
		w := newTerminal(t, 80, 24, d.env()[len(os.Environ()):], product(t, "bin/xsched"), "top")
		w.shows("no programs")
		pid := w.pid()
		w.tmux("kill-server")
		ends(t, pid)
	})
	t.Run("no colours", func(t *testing.T) {
		w := newTerminal(t, 80, 24, append(d.env()[len(os.Environ()):], "NO_COLOR=1"), product(t, "bin/xsched"), "top")
		w.shows("no programs")
		if m := regexp.MustCompile(`\x1b\[[0-9;]*[39][0-7][;m]`).FindString(w.screen("-e")); m != "" {
			t.Errorf("a colour: %q", m)
		}
	})
	t.Run("stopped daemon", func(t *testing.T) {
		w := newTerminal(t, 80, 24, d.env()[len(os.Environ()):], product(t, "bin/xsched"), "top", "--interval", "200ms")
		w.shows("no programs")
		_ = d.cmd.Process.Signal(syscall.SIGSTOP)
		defer func() { _ = d.cmd.Process.Signal(syscall.SIGCONT) }()
		w.shows("the daemon did not answer within")
		_ = d.cmd.Process.Signal(syscall.SIGCONT)
		w.shows("reconnected")
		w.keys("q")
		w.restored(0)
	})
}

// command is an xsched command for the daemon.
func (d *daemon) command(args ...string) *exec.Cmd {
	cmd := exec.Command(product(d.t, "bin/xsched"), args...)
	cmd.Env = d.env()
	return cmd
}

// cpuTime is the CPU time of a process.
func cpuTime(t testing.TB, pid int) time.Duration {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	user, _ := strconv.Atoi(fields[11])
	system, _ := strconv.Atoi(fields[12])
	return time.Duration(user+system) * 10 * time.Millisecond // ticks of 100 Hz
}

// TestLongStatus checks the readers that need no terminal.
func TestLongStatus(t *testing.T) {
	d := newDaemon(t)
	load := d.tenant(product(t, "build/virtual/tenant"), 2000)

	out, err := d.command("status").Output()
	if err != nil || !regexp.MustCompile(`(?m)^health +no problems$`).Match(out) || !regexp.MustCompile(`(?m)^programs +1:`).Match(out) {
		t.Errorf("status: %v\n%s", err, out)
	}
	out, err = d.command("top", "--once", "--json").Output()
	var s control.Snapshot
	if err != nil || json.Unmarshal(out, &s) != nil || len(s.List.Processes) != 1 || s.List.Processes[0].PID != load.pid() || len(s.Devices) == 0 {
		t.Errorf("top --once --json: %v\n%s", err, out)
	}
	if out, err = d.command("top", "--once").Output(); err != nil || !bytes.Contains(out, []byte(itoa(load.pid()))) || bytes.ContainsRune(out, '\x1b') {
		t.Errorf("top --once: %v\n%q", err, out)
	}
	if err = d.command("top").Run(); exitCode(err) != 2 {
		t.Errorf("top without a terminal: %v", err)
	}

	// Watchers print one picture after the other, survive a restart and end without an error.
	var watchers []*exec.Cmd
	var outputs []string
	for _, args := range [][]string{{"list", "--watch"}, {"list", "--watch", "--json"}, {"top"}, {"top", "--json"}} {
		name := filepath.Join(t.TempDir(), "out")
		file, err := os.Create(name)
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		cmd := d.command(append(args, "--interval", "200ms")...)
		cmd.Env = append(cmd.Env, "TERM=dumb")
		cmd.Stdout, cmd.Stderr = file, file
		start(t, cmd)
		watchers, outputs = append(watchers, cmd), append(outputs, name)
	}
	count := func(i int, text string) int {
		out, err := os.ReadFile(outputs[i])
		if err != nil {
			t.Fatal(err)
		}
		if bytes.ContainsRune(out, '\x1b') {
			t.Fatalf("escape sequences in %q", out)
		}
		return bytes.Count(out, []byte(text))
	}
	all := func(text string, atLeast int) {
		t.Helper()
		for i := range watchers {
			eventually(t, watchers[i].String()+" prints "+text, func() bool { return count(i, text) >= atLeast })
		}
	}
	all(itoa(load.pid()), 2)
	d.kill()
	all("retrying: ", 1)
	if out, err = d.command("status").CombinedOutput(); exitCode(err) != 1 || !bytes.Contains(out, []byte("not reachable")) {
		t.Errorf("status without a daemon: %v\n%s", err, out)
	}
	d.start()
	for i := range watchers {
		before := count(i, itoa(load.pid()))
		eventually(t, watchers[i].String()+" continues", func() bool { return count(i, itoa(load.pid())) > before+1 })
		_ = watchers[i].Process.Signal(syscall.SIGTERM)
		if err := watchers[i].Wait(); err != nil {
			t.Errorf("%s: %v", watchers[i], err)
		}
	}
}

func exitCode(err error) int {
	if e, ok := errors.AsType[*exec.ExitError](err); ok {
		return e.ExitCode()
	}
	return 0
}
