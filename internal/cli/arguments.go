// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"xsched/internal/control"
	"xsched/internal/model"
)

// noArgs refuses positional arguments.
func noArgs(c *cobra.Command, args []string) error { return positional()(c, args) }

// positional checks the number of positional arguments by name: PID is required, [NAME] optional,
// FILE... repeated. Cobra's own messages name neither.
func positional(names ...string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		for i, name := range names {
			if i >= len(args) && !strings.HasPrefix(name, "[") {
				return fmt.Errorf("no %s given", strings.TrimSuffix(name, "..."))
			}
			if strings.HasSuffix(name, "...") {
				return nil
			}
		}
		if len(args) > len(names) {
			return fmt.Errorf("unexpected argument %q", args[len(names)])
		}
		return nil
	}
}

// flagError rewords what pflag says about a flag.
func flagError(_ *cobra.Command, err error) error {
	if e, ok := errors.AsType[*pflag.NotExistError](err); ok {
		if short := e.GetSpecifiedShortnames(); short != "" {
			return fmt.Errorf("unknown flag -%s", e.GetSpecifiedName())
		}
		return fmt.Errorf("unknown flag --%s", e.GetSpecifiedName())
	}
	if e, ok := errors.AsType[*pflag.ValueRequiredError](err); ok {
		return fmt.Errorf("--%s needs a value", e.GetFlag().Name)
	}
	if e, ok := errors.AsType[*pflag.InvalidValueError](err); ok {
		if _, ours := errors.AsType[usageError](err); ours {
			return fmt.Errorf("--%s: %w", e.GetFlag().Name, errors.Unwrap(err))
		}
		return fmt.Errorf("--%s %q is invalid; use %s", e.GetFlag().Name, e.GetValue(), describeType(e.GetFlag().Value.Type()))
	}
	return err
}

// describeType names the values of a pflag type.
func describeType(kind string) string {
	switch {
	case kind == "bool":
		return "true or false"
	case kind == "duration":
		return "a duration such as 20ms or 2s"
	case strings.HasPrefix(kind, "uint"):
		return "a number from 0"
	case strings.HasPrefix(kind, "int"), strings.HasPrefix(kind, "float"):
		return "a number"
	}
	return "a " + kind
}

// parsePID reads a process ID.
func parsePID(text string) (int, error) {
	if text == "self" {
		return control.Self, nil
	}
	pid, err := strconv.Atoi(text)
	if err != nil || pid <= 0 {
		return 0, usagef("%q is not a PID; see `xsched list`", text)
	}
	return pid, nil
}

// parseModeLevel reads the level of mode level: 1, 2 or 3.
func parseModeLevel(text string) (model.Level, error) {
	if slices.Contains([]string{"1", "2", "3"}, text) {
		return model.Level(text[0] - '0'), nil
	}
	return 0, usagef("level %q is out of range; use 1, 2 or 3", text)
}
