// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestEntryPoints: what is hooked according to entry_points.txt is what the shim hooks, and its symbols
// are in the order that it searches.
func TestEntryPoints(t *testing.T) {
	for _, dir := range runtimes {
		list, err := readEntries(root, dir)
		if err != nil {
			t.Fatal(err)
		}
		names, err := hooked(root, dir)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.IsSorted(names) {
			t.Errorf("%s: the hooks are not in the order of their names, which xsi_runtime_find needs", dir)
		}
		hooks := map[string]bool{}
		for _, name := range names {
			hooks[name] = true
		}
		for _, e := range list.entries {
			if (e.class == "hooked") != hooks[e.name] {
				t.Errorf("%s: %s is %s in entry_points.txt; hooked by the shim: %v", dir, e.name, e.class, hooks[e.name])
			}
		}
		for _, name := range list.missing(names) {
			t.Errorf("%s: %s is hooked, and not in entry_points.txt", dir, name)
		}
		if len(list.versions) < 5 || len(list.entries) < 200 {
			t.Errorf("%s: only %d versions and %d entry points", dir, len(list.versions), len(list.entries))
		}
	}
}

// TestHeadersAreClassified compares the headers that `make setup` installs.
func TestHeadersAreClassified(t *testing.T) {
	for dir, include := range map[string]string{
		"cuda": filepath.Dir(vendorHeader(t, "cuda.h")),
		"hip":  filepath.Dir(filepath.Dir(vendorHeader(t, "hip/hip_runtime_api.h"))),
	} {
		if err := checkHeaders(root, include); err != nil {
			t.Errorf("%s: %v", dir, err)
		}
	}
}

// TestHeadersFail: a new name is found, in each runtime's own way of declaring it.
func TestHeadersFail(t *testing.T) {
	for path, text := range map[string]string{
		"cuda.h":                "typedef int CUresult;\n#define CUDAAPI\nCUresult CUDAAPI cuStreamBeginNewCapture(void);\n",
		"hip/hip_runtime_api.h": "typedef int hipError_t;\nhipError_t hipLaunchNew(void);\n",
		"CL/cl.h":               "extern int clEnqueueNewThing(void);\n",
	} {
		dir := t.TempDir()
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, path)), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, path), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := checkHeaders(root, dir); err == nil || !strings.Contains(err.Error(), "New") {
			t.Errorf("%s: have error %v, want one that names the new function", path, err)
		}
	}
	if err := checkHeaders(root, t.TempDir()); err == nil {
		t.Error("a folder without headers is accepted")
	}
}

func TestEntryPointErrors(t *testing.T) {
	for text, want := range map[string]string{
		"versions 1 2\nhooked x\n  a 3\n":            "not recorded",
		"versions 1 2\nhooked x\n  a\ncannot y\n  a": "twice",
		"versions 1\n  a\n":                          "no class",
		"versions 1\nflies x\n":                      "want one of hooked",
		"versions 1\npasses\n":                       "a reason",
	} {
		if _, err := parseEntries(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: have error %v, want one with %q", text, err, want)
		}
	}
}

// TestPage: docs/platforms/hooks.md is what the tables give.
func TestPage(t *testing.T) {
	want, err := page(root)
	if err != nil {
		t.Fatal(err)
	}
	have, err := os.ReadFile(filepath.Join(root, "docs/platforms/hooks.md"))
	if err != nil {
		t.Fatal(err)
	}
	if string(have) != string(want) {
		t.Error("docs/platforms/hooks.md is stale; run `make hooks-page`")
	}
}

// hooked returns the names that the shim hooks, in the order of the runtime's symbols.
func hooked(root, dir string) ([]string, error) {
	calls, err := readTable(dialectOf(dir), filepath.Join(root, "shim", "runtime", dir))
	if err != nil {
		return nil, err
	}
	var names []string
	for _, c := range calls {
		if c.kind != "use" {
			names = append(names, c.symbol)
		}
	}
	return names, nil
}
