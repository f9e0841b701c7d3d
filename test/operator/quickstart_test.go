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

// TestLongQuickStartPage runs every command of the page and compares the output with the documented one,
// but for its numbers.
func TestLongQuickStartPage(t *testing.T) {
	product(t, "bin/xsched")
	dir, err := os.MkdirTemp("", "xs")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	_, port, _ := strings.Cut(freePort(t), ":")
	sh := newShell(t, "XSCHED_DIR="+dir)
	c := client.New(filepath.Join(dir, "control.sock"))
	defer c.Close()
	programs, measured := 0, 0
	steps := console(t, "docs/quickstart.md")
	for _, s := range steps {
		if s.command == "make build" { // a prerequisite of this test
			continue
		}
		command := strings.ReplaceAll(s.command, "8000", port)
		if strings.HasPrefix(command, "kill %1") {
			eventually(t, "the programs have left", func() bool {
				list, err := c.List(context.Background())
				return err == nil && len(list.Processes) == 0
			})
		}
		got := sh.run(command, s.output)
		switch {
		case strings.HasPrefix(command, "xsched serve"):
			eventually(t, "the daemon answers", func() bool { _, err := c.Version(context.Background()); return err == nil })
		case strings.HasPrefix(command, "xsched run"):
			programs++
			eventually(t, "the program has joined", func() bool {
				list, err := c.List(context.Background())
				if err != nil || len(list.Processes) != programs {
					return false
				}
				for _, p := range list.Processes {
					if len(p.Queues) == 0 {
						return false
					}
				}
				return true
			})
		case strings.Contains(command, "load.py"):
			measured++
			checkLoad(t, got)
		case strings.HasPrefix(command, "xsched list"), strings.HasPrefix(command, "xsched top"),
			strings.HasPrefix(command, "xsched status"), strings.HasPrefix(command, "xsched logs"):
			eventually(t, fmt.Sprintf("%s shows %q", command, s.output), func() bool {
				return len(missing(s.output, got)) == 0 || len(missing(s.output, sh.run(command, nil))) == 0
			})
			continue
		}
		if absent := missing(s.output, got); len(absent) > 0 {
			t.Errorf("%s: the page shows lines that the command did not print: %q; it printed %q", s.command, absent, got)
		}
	}
	if len(steps) < 15 || programs != 2 || measured != 3 {
		t.Errorf("%d commands, %d programs and %d measurements; the page no longer has its form", len(steps), programs, measured)
	}
	eventually(t, "the daemon has ended", func() bool { _, err := c.Version(context.Background()); return err != nil })
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
