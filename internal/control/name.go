// SPDX-License-Identifier: Apache-2.0

package control

import (
	"path"
	"slices"
	"strings"
)

// maxTenantName bounds a tenant's name in bytes.
const maxTenantName = 48

// interpreters run a script that says more than their own name. Version numbers at the end of a name
// do not count.
var interpreters = []string{"python", "pypy", "bash", "sh", "dash", "zsh", "node", "perl", "ruby", "julia", "Rscript"}

// TenantName returns a short name for a command line: the base name of the program, or of the
// script or module that an interpreter runs. It never contains arguments. The result has at most
// 48 printable ASCII characters without quotes and backslashes; it is empty for an empty command.
func TenantName(command string) string {
	words := strings.Fields(command)
	if len(words) == 0 {
		return ""
	}
	name := path.Base(strings.TrimPrefix(words[0], "-")) // a login shell's name starts with a dash
	if isInterpreter(name) {
		if script := scriptOf(words[1:]); script != "" {
			name = path.Base(script)
		}
	}
	return cleanName(strings.TrimSuffix(name, ":"))
}

func isInterpreter(name string) bool {
	return slices.Contains(interpreters, strings.TrimRight(name, "0123456789."))
}

// scriptOf returns the script or module of an interpreter's arguments; empty: it runs none by name.
func scriptOf(args []string) string {
	for i := 0; i < len(args); i++ {
		a := args[i]
		switch {
		case a == "-m" && i+1 < len(args):
			return args[i+1]
		case a == "-W" || a == "-X":
			i++ // the value of the option
		case strings.HasPrefix(a, "-") && !strings.HasPrefix(a, "--") && strings.ContainsAny(a, "ce"):
			return "" // code on the command line, which may hold secrets
		case !strings.HasPrefix(a, "-"):
			return a
		}
	}
	return ""
}

func cleanName(name string) string {
	clean := strings.Map(func(r rune) rune {
		if r <= ' ' || r > '~' || r == '"' || r == '\\' {
			return '_'
		}
		return r
	}, name)
	return clean[:min(len(clean), maxTenantName)]
}
