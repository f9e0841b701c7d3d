// SPDX-License-Identifier: Apache-2.0

package control

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
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
	name, _ := program(command)
	return cleanName(name)
}

// program returns the name of a command line and the arguments after it; none if they are code.
func program(command string) (name string, arguments []string) {
	words := strings.Fields(command)
	if len(words) == 0 {
		return "", nil
	}
	name = path.Base(strings.TrimPrefix(words[0], "-")) // a login shell's name starts with a dash
	arguments = words[1:]
	if isInterpreter(name) {
		script := scriptOf(arguments)
		if script < len(arguments) {
			name = path.Base(arguments[script])
		}
		arguments = arguments[min(script+1, len(arguments)):]
	}
	return strings.TrimSuffix(name, ":"), arguments
}

func isInterpreter(name string) bool {
	return slices.Contains(interpreters, strings.TrimRight(name, "0123456789."))
}

// scriptOf returns the index of the script or module among an interpreter's arguments; their number: it
// runs none by name.
func scriptOf(args []string) int {
	for i := 0; i < len(args); i++ {
		a := args[i]
		switch {
		case a == "-m" && i+1 < len(args):
			return i + 1
		case a == "-W" || a == "-X":
			i++ // the value of the option
		case strings.HasPrefix(a, "-") && !strings.HasPrefix(a, "--") && strings.ContainsAny(a, "ce"):
			return len(args) // code on the command line, which may hold secrets
		case !strings.HasPrefix(a, "-"):
			return i
		}
	}
	return len(args)
}

// maxArgument bounds an argument in a name. Longer ones, such as paths, tell little at a glance.
const maxArgument = 24

// NameProcesses gives each program a name that no other one in the list has. It is the program's short
// name. Programs that share one add their pod, else the first argument that only one of them has, else
// the PID. A program without a visible command has the name of its pod, or its PID.
func NameProcesses(list []Process) {
	names, arguments := make([]string, len(list)), make([][]string, len(list))
	for i := range list {
		p := &list[i]
		names[i], arguments[i] = program(p.Command)
		names[i] = cmp.Or(names[i], p.Pod, fmt.Sprintf("process %d", p.PID))
	}
	type word struct{ name, text string }
	programs, users := map[string]int{}, map[word]int{} // users: how many programs of a name have a word
	for i := range list {
		programs[names[i]]++
		arguments[i] = append([]string{list[i].Pod}, arguments[i]...)
		for k, text := range arguments[i] {
			if !slices.Contains(arguments[i][:k], text) {
				users[word{names[i], text}]++
			}
		}
	}
	for i := range list {
		p := &list[i]
		text := names[i]
		if programs[text] > 1 {
			text += " " + difference(p.PID, arguments[i], func(argument string) bool { return users[word{names[i], argument}] == 1 })
		}
		p.Name = printable(text)
	}
}

// difference returns the first argument that only one program has, with its option, or the PID.
func difference(pid int, arguments []string, only func(string) bool) string {
	i := slices.IndexFunc(arguments, func(a string) bool { return a != "" && len(a) <= maxArgument && only(a) })
	switch {
	case i < 0:
		return strconv.Itoa(pid)
	case i > 1 && strings.HasPrefix(arguments[i-1], "-") && len(arguments[i-1]) <= maxArgument:
		return arguments[i-1] + " " + arguments[i]
	}
	return arguments[i]
}

// printable replaces what could control a terminal, and bounds the length.
func printable(name string) string {
	clean := []rune(strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '_'
		}
		return r
	}, strings.ToValidUTF8(name, "_")))
	return string(clean[:min(len(clean), maxTenantName+2*maxArgument)])
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

// Short bounds a text and removes what could forge lines or control a terminal.
func Short(s string, most int) string {
	if len(s) > most {
		cut := most
		for cut > 0 && !utf8.RuneStart(s[cut]) {
			cut--
		}
		s = s[:cut] + "…"
	}
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, strings.ToValidUTF8(s, "?"))
}
