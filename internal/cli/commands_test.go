// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

var (
	inlineCommand = regexp.MustCompile("`(xsched [^`]+)`")
	shellWord     = regexp.MustCompile(`'[^']*'|"[^"]*"|[^\s'"]+`)
	variable      = regexp.MustCompile(`^[A-Z_0-9]+=`)
)

// documentedCommands returns the command lines in code blocks of a document, with continued lines
// joined, and the xsched commands in its inline code. In a console block commands follow a prompt.
func documentedCommands(text string) (blocks, inline []string) {
	fence, console, joined := false, false, ""
	for line := range strings.Lines(text) {
		trimmed := strings.TrimSpace(line)
		if strings.HasPrefix(trimmed, "```") {
			fence, console = !fence, trimmed == "```console"
			continue
		}
		if console && joined == "" && !strings.HasPrefix(trimmed, "$ ") {
			continue
		}
		if !fence && !strings.HasPrefix(line, "    ") {
			for _, m := range inlineCommand.FindAllStringSubmatch(line, -1) {
				inline = append(inline, m[1])
			}
			continue
		}
		joined += trimmed
		if before, ok := strings.CutSuffix(joined, "\\"); ok {
			joined = before
			continue
		}
		blocks, joined = append(blocks, joined), ""
	}
	return blocks, inline
}

// xschedArgs returns the arguments of xsched in a shell command: behind environment variables, sudo,
// nohup or a shell prompt, or as the entry point of a container. nil: the command does not run xsched.
func xschedArgs(command string) []string {
	command, _, _ = strings.Cut(command, " #")
	command = strings.TrimPrefix(strings.TrimSpace(command), "$ ")
	words := shellWord.FindAllString(command, -1)
	if len(words) > 1 && slices.Contains([]string{"docker", "podman"}, words[0]) {
		i := slices.Index(words, "--entrypoint")
		if i < 0 || i+2 >= len(words) || words[i+1] != "xsched" {
			return nil
		}
		words = append([]string{"xsched"}, words[i+3:]...) // behind the image
	}
	for len(words) > 0 && (variable.MatchString(words[0]) || slices.Contains([]string{"sudo", "nohup"}, words[0])) {
		words = words[1:]
	}
	if len(words) < 2 || strings.TrimPrefix(words[0], "bin/") != "xsched" {
		return nil
	}
	words = words[1:]
	if i := slices.Index(words, "--"); i < 0 { // behind it they belong to the program
		i = slices.IndexFunc(words, func(w string) bool { return strings.ContainsAny(w, "<>|&;") && w[0] != '\'' && w[0] != '"' })
		if i >= 0 {
			words = words[:i]
		}
	}
	return words
}

// parse checks a command line as the program would, without running it. A mention may lack arguments,
// and have N for a number.
func parse(args []string, mention bool) error {
	if mention {
		args = slices.Clone(args)
		for i := range args {
			if args[i] == "N" {
				args[i] = "1"
			}
		}
	}
	root := newRoot(&app{stdout: io.Discard, stderr: io.Discard})
	root.InitDefaultCompletionCmd()
	root.InitDefaultHelpCmd()
	c, rest, err := root.Find(args)
	if err != nil {
		return err
	}
	if c == root && len(rest) > 0 && !strings.HasPrefix(rest[0], "-") && rest[0] != "COMMAND" {
		return errors.New("unknown command")
	}
	if err := c.ParseFlags(rest); err != nil && !errors.Is(err, pflag.ErrHelp) {
		return err
	}
	if mention {
		return nil
	}
	return c.ValidateArgs(c.Flags().Args())
}

// TestDocumentedCommands parses every xsched command line of the documentation.
func TestDocumentedCommands(t *testing.T) {
	names := []string{"../../README.md", "../../README.zh-CN.md", "../../CONTRIBUTING.md", "../../SECURITY.md"}
	err := filepath.WalkDir("../../docs", func(name string, _ fs.DirEntry, err error) error {
		if filepath.Ext(name) == ".md" {
			names = append(names, name)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]int{}
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		blocks, inline := documentedCommands(string(text))
		for i, command := range slices.Concat(blocks, inline) {
			args := xschedArgs(command)
			if args == nil {
				continue
			}
			seen[filepath.Dir(name)]++
			if err := parse(args, i >= len(blocks)); err != nil {
				t.Errorf("%s: %s: %v", name, command, err)
			}
		}
	}
	if seen["../../docs/guides"] < 20 || seen["../../docs"] < 20 {
		t.Errorf("found %v commands; the patterns no longer match", seen)
	}
	for _, bad := range []string{
		"xsched runn -- true", "sudo xsched serve --no-such-flag", "XLA=1 xsched run --priority 5",
		"docker run --gpus all --entrypoint xsched IMAGE run --prio 1 -- true", "xsched hint",
	} {
		if args := xschedArgs(bad); args == nil || parse(args, false) == nil {
			t.Errorf("%q counts as a correct command: %q", bad, args)
		}
	}
}

// TestGuides checks that each guide has a service and a batch job, raises no program, says whether it was run, and is
// linked from the overview.
func TestGuides(t *testing.T) {
	overview, err := os.ReadFile("../../docs/guides/README.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, guide := range []string{"pytorch", "vllm", "llama-cpp", "onnxruntime", "triton-server", "jax", "cupy"} {
		text, err := os.ReadFile("../../docs/guides/" + guide + ".md")
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(overview), "]("+guide+".md)") {
			t.Errorf("the overview does not link %s.md", guide)
		}
		lines := strings.Split(string(text), "\n")
		if !strings.HasPrefix(lines[2], "**Not run on hardware yet") && !strings.HasPrefix(lines[2], "**Run on ") {
			t.Errorf("%s.md does not begin with whether it was run: %q", guide, lines[2])
		}
		service, job := false, false
		blocks, _ := documentedCommands(string(text))
		for _, command := range blocks {
			args := xschedArgs(command)
			service = service || len(args) > 2 && args[0] == "run" && args[1] == "--"
			job = job || len(args) > 2 && args[0] == "run" && args[1] == "--priority" && args[2] == "-10"
			// Lowering a job needs no rights. Raising a service does, under root's daemon.
			if i := slices.Index(args, "--priority"); i >= 0 && i+1 < len(args) && !strings.HasPrefix(args[i+1], "-") {
				t.Errorf("%s.md raises a program: %s", guide, command)
			}
		}
		if !service || !job {
			t.Errorf("%s.md has no command for a service (%v) or for a batch job (%v)", guide, service, job)
		}
	}
}
