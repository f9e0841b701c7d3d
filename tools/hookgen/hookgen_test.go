// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const root = "../.."

func table(t *testing.T, d dialect) []call {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, "shim", "runtime", d.dir, "hooks.table"))
	if err != nil {
		t.Fatal(err)
	}
	calls, err := parseTable(d, string(text))
	if err != nil {
		t.Fatal(err)
	}
	return calls
}

func TestTableErrors(t *testing.T) {
	for line, want := range map[string]string{
		"cuA cuA 2000 legacy launch 0 : int":                 "no stream",
		"cuA cuA 2000 legacy launch 3 : CUstream":            "no stream",
		"cuA cuA 2000 legacy fly - : int":                    "unknown kind",
		"cuA cuA 2000 legacy sync default : int":             "does not know",
		"cuA cuA 2000 legacy event 0 : CUstream":             "takes no position",
		"cuA cuA new legacy pass - : int":                    "since",
		"cuA cuA 2000 mine pass - : int":                     "neither legacy nor thread",
		"cuA cuA 2000 legacy pass : int":                     "6 fields",
		"cuA cuA 2000 legacy pass - = cuB":                   "unknown symbol",
		"cuA cuA 1 legacy pass - :\ncuA cuA 1 legacy use -:": "duplicate symbol",
	} {
		if _, err := parseTable(cuda, line); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: have error %v, want one with %q", line, err, want)
		}
	}
}

func TestOpenCLTableErrors(t *testing.T) {
	for line, want := range map[string]string{
		"clA cl_int copy 1 : cl_command_queue, cl_mem": "no cl_bool",
		"clA cl_int copy - : cl_mem":                   "no stream",
		"clA cl_int copy 1/2 : cl_command_queue":       "does not know",
		"clA void* copy - : cl_command_queue":          "by hand",
		"clA cl_int sync - : cl_command_queue":         "no kind",
		"clA cl_int fly - : cl_command_queue":          "unknown kind",
		"clA copy - : cl_command_queue":                "4 fields",
	} {
		if _, err := parseTable(opencl, line); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: have error %v, want one with %q", line, err, want)
		}
	}
}
