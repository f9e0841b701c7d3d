// SPDX-License-Identifier: Apache-2.0

package window

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"xsched/internal/model"
	"xsched/internal/strict"
)

// Entry is a program of a launcher's list.
type Entry struct {
	Name     string            `yaml:"name" json:"name"`
	Command  []string          `yaml:"command" json:"command"`
	Priority int               `yaml:"priority" json:"priority"`
	Hints    map[string]string `yaml:"hints" json:"hints,omitempty"` // by flag of `xsched run`
	Dir      string            `yaml:"dir" json:"dir,omitempty"`
	Env      map[string]string `yaml:"env" json:"env,omitempty"`
}

// maxList bounds the size of a list in bytes.
const maxList = 1 << 20

var entryName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)

// Load reads a list of programs.
func Load(path string) ([]Entry, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read the list of programs: %w; name another with --file", err)
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, maxList+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("read the list of programs: %w", err)
	case len(text) > maxList:
		return nil, fmt.Errorf("%s is larger than 1 MiB; name a list of programs with --file", path)
	}
	list, err := Parse(text)
	if bad, ok := errors.AsType[*strict.Error](err); ok {
		bad.File = path
		return nil, bad
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return list, nil
}

// Parse reads a list of programs and checks it.
func Parse(text []byte) ([]Entry, error) {
	var list struct {
		Programs []Entry `yaml:"programs"`
	}
	root, err := strict.Root(text)
	if err == nil && root != nil {
		err = strict.Decode(root, &list)
	}
	if err != nil {
		return nil, err
	}
	if len(list.Programs) == 0 {
		return nil, errors.New("the list is empty; give it at least `programs: [{name: NAME, command: [CMD]}]`")
	}
	for i := range list.Programs {
		e := &list.Programs[i]
		if !entryName.MatchString(e.Name) {
			return nil, fmt.Errorf("program %d has the name %q; use letters, digits, dots, dashes and underscores", i+1, e.Name)
		}
		if slices.ContainsFunc(list.Programs[:i], func(other Entry) bool { return other.Name == e.Name }) {
			return nil, fmt.Errorf("two programs have the name %q; rename one", e.Name)
		}
		if err := e.check(); err != nil {
			return nil, fmt.Errorf("program %q: %w", e.Name, err)
		}
	}
	return list.Programs, nil
}

func (e *Entry) check() error {
	if len(e.Command) == 0 || e.Command[0] == "" {
		return errors.New("no command given; use `command: [CMD, ARG]`")
	}
	for name := range e.Env {
		if name == "" || strings.ContainsAny(name, "=\x00") {
			return fmt.Errorf("%q is not the name of a variable", name)
		}
	}
	if _, ok := e.Hints["priority"]; ok {
		return errors.New("a priority among the hints; use `priority:` beside `command:`")
	}
	_, err := e.Flags()
	return err
}

// Flags returns the hints as flags of `xsched run`.
func (e *Entry) Flags() ([]string, error) {
	given := map[string]string{"priority": strconv.Itoa(e.Priority)}
	maps.Copy(given, e.Hints)
	var flags []string
	for _, f := range model.HintFields() {
		text, ok := given[f.Flag]
		if !ok {
			continue
		}
		delete(given, f.Flag)
		if _, err := f.Parse(text); err != nil {
			return nil, err
		}
		flags = append(flags, "--"+f.Flag+"="+text)
	}
	for name := range given {
		return nil, fmt.Errorf("unknown hint %q; see `xsched run --help`", name)
	}
	return flags, nil
}
