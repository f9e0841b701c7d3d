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
	"strconv"
	"strings"
	"testing"
	"time"

	"xsched/internal/control/client"
)

// step is a command of a page and the output that the page shows.
type step struct {
	command string
	output  []string
}

// console returns the commands in the console blocks of a page.
func console(t *testing.T, name string) []step {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, name))
	if err != nil {
		t.Fatal(err)
	}
	var steps []step
	inside := false
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSuffix(line, "\n")
		command, found := strings.CutPrefix(line, "$ ")
		switch {
		case strings.HasPrefix(line, "```"):
			inside = line == "```console"
		case inside && found:
			steps = append(steps, step{command: command})
		case inside && len(steps) > 0:
			steps[len(steps)-1].output = append(steps[len(steps)-1].output, line)
		}
	}
	return steps
}

var (
	numbers = regexp.MustCompile(`[0-9][0-9.]*`)
	// Lines with values that differ in more than numbers: only their first word is compared.
	varying = regexp.MustCompile(`^(daemon|engine|xsched|protection:|N)( |$)`)
	// The unit of a journal line's total differs.
	total = regexp.MustCompile(`( N times)? for N \S+$`)
)

// shape is a line without its numbers.
func shape(line string) string {
	line = numbers.ReplaceAllString(strings.Join(strings.Fields(line), " "), "N")
	if varying.MatchString(line) || strings.Contains(line, "█") {
		line, _, _ = strings.Cut(line, " ")
	}
	return total.ReplaceAllString(line, "")
}

// missing returns the documented lines whose shape is not in the output.
func missing(documented, got []string) []string {
	shapes := map[string]bool{}
	for _, line := range got {
		shapes[shape(line)] = true
	}
	var absent []string
	for _, line := range documented {
		if !shapes[shape(line)] {
			absent = append(absent, line)
		}
	}
	return absent
}

// shell is a shell that runs one command after the other.
type shell struct {
	t     *testing.T
	in    io.Writer
	lines chan string
}

func newShell(t *testing.T, env ...string) *shell {
	t.Helper()
	cmd := exec.Command("bash", "--norc", "--noprofile", "-m")
	cmd.Dir, cmd.Env, cmd.Stderr = root, append(os.Environ(), env...), os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	s := &shell{t, in, make(chan string, 1000)}
	start(t, cmd)
	t.Cleanup(func() { _, _ = io.WriteString(in, "kill -KILL $(jobs -p) 2>/dev/null\n") })
	go func() {
		defer close(s.lines)
		for scan := bufio.NewScanner(out); scan.Scan(); {
			s.lines <- scan.Text()
		}
	}()
	return s
}

// run returns the output of a command, up to its end and until it has the documented lines.
func (s *shell) run(command string, documented []string) []string {
	s.t.Helper()
	const mark = "end of the command:"
	if _, err := fmt.Fprintf(s.in, "%s\necho '%s' $?\n", command, mark); err != nil {
		s.t.Fatal(err)
	}
	var got []string
	ended := false
	late := time.After(2 * patience)
	for !ended || strings.HasSuffix(command, "&") && len(missing(documented, got)) > 0 {
		select {
		case line, open := <-s.lines:
			status, found := strings.CutPrefix(line, mark+" ")
			switch {
			case !open:
				s.t.Fatalf("the shell ended after %q", command)
			case found && status != "0":
				s.t.Fatalf("%s: exit code %s, output %q", command, status, got)
			case found:
				ended = true
			default:
				got = append(got, line)
			}
		case <-late:
			s.t.Fatalf("%s: did not end, or printed %q instead of %q", command, got, documented)
		}
	}
	return got
}

// walk runs the commands of a page.
type walk struct {
	*shell
	daemon             *client.Client
	running            int // programs that should have joined
	programs, measured int
}

// await waits until as many programs as should run have queues, and no others are there.
func (w *walk) await(what string) {
	w.t.Helper()
	eventually(w.t, what, func() bool {
		list, err := w.daemon.List(context.Background())
		if err != nil || len(list.Processes) != w.running {
			return false
		}
		for _, p := range list.Processes {
			if len(p.Queues) == 0 {
				return false
			}
		}
		return true
	})
}

// do runs a command and compares its output with the documented one, but for its numbers.
func (w *walk) do(s step) {
	w.t.Helper()
	if s.command == "kill %1" { // the daemon
		w.running = 0
		w.await("the programs have left")
	}
	got := w.run(s.command, s.output)
	switch {
	case strings.HasPrefix(s.command, "xsched serve"):
		eventually(w.t, "the daemon answers", func() bool { _, err := w.daemon.Version(context.Background()); return err == nil })
	case strings.HasPrefix(s.command, "kill") && s.command != "kill %1":
		w.running -= strings.Count(s.command, " ")
		w.await("the programs have left")
	case strings.HasPrefix(s.command, "xsched run") && strings.HasSuffix(s.command, "&"):
		w.programs++
		w.running++
		w.await("the program has joined")
	case strings.Contains(s.command, "load.py"):
		w.measured++
		checkLoad(w.t, got)
	case strings.HasPrefix(s.command, "xsched list"), strings.HasPrefix(s.command, "xsched top"),
		strings.HasPrefix(s.command, "xsched status"), strings.HasPrefix(s.command, "xsched logs"):
		eventually(w.t, fmt.Sprintf("%s shows %q", s.command, s.output), func() bool {
			return len(missing(s.output, got)) == 0 || len(missing(s.output, w.run(s.command, nil))) == 0
		})
		return
	}
	if absent := missing(s.output, got); len(absent) > 0 {
		w.t.Errorf("%s: the page shows lines that the command did not print: %q; it printed %q", s.command, absent, got)
	}
}

// TestLongWalkThroughs runs every command of the pages.
func TestLongWalkThroughs(t *testing.T) {
	for _, page := range []struct {
		name                        string
		commands, programs, measure int // at least, exactly, exactly
	}{
		{"docs/quickstart.md", 15, 2, 3},
		{"docs/guides/memory.md", 15, 5, 1},
	} {
		t.Run(filepath.Base(page.name), func(t *testing.T) {
			product(t, "bin/xsched")
			dir, err := os.MkdirTemp("", "xs")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = os.RemoveAll(dir) })
			w := &walk{shell: newShell(t, "XSCHED_DIR="+dir), daemon: client.New(filepath.Join(dir, "control.sock"))}
			defer w.daemon.Close()
			ports := strings.NewReplacer("8000", portNumber(t), "8001", portNumber(t))
			steps := console(t, page.name)
			for _, s := range steps {
				if s.command == "make build" { // a prerequisite of this test
					continue
				}
				s.command = ports.Replace(s.command)
				w.do(s)
			}
			if len(steps) < page.commands || w.programs != page.programs || w.measured != page.measure {
				t.Errorf("%d commands, %d programs and %d measurements; the page no longer has its form", len(steps), w.programs, w.measured)
			}
			eventually(t, "the daemon has ended", func() bool { _, err := w.daemon.Version(context.Background()); return err != nil })
		})
	}
}

func portNumber(t *testing.T) string {
	t.Helper()
	_, port, _ := strings.Cut(freePort(t), ":")
	return port
}

// checkLoad checks what the load generator says about the answers; their latency is not judged.
func checkLoad(t *testing.T, output []string) {
	t.Helper()
	values := map[string]float64{}
	for _, line := range output {
		if f := strings.Fields(line); len(f) == 2 {
			values[f[0]], _ = strconv.ParseFloat(f[1], 64)
		}
	}
	if values["requests"] == 0 || values["answered"] == 0 || values["failed"]+values["wrong"] > 0 ||
		values["answered"]+values["refused"] != values["requests"] {
		t.Errorf("load: %q", output)
	}
}
