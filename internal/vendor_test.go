// SPDX-License-Identifier: Apache-2.0

package internal

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// vendorFolders may name a vendor: drivers, virtual devices and the analysis of one runtime's logs.
var vendorFolders = []string{
	"internal/driver/nvidia/", "internal/driver/amd/", "internal/virtual/", "internal/amdlog/", "tools/amdloggen/",
}

// vendorFiles may name a vendor, for the reason given.
var vendorFiles = map[string]string{
	"internal/driver/registry/registry.go": "one line for each driver",
	"internal/cli/amdlog.go":               "the command for one runtime's logs",
	"internal/embedded/embedded.go":        "names of the embedded files",
	"internal/standin/find.go":             "where the runtimes' libraries are",

	"internal/control/upstream/variables.go": "names of upstream's variables",
}

// reWord splits an identifier or a text into words: camel case, snake case and blanks.
var reWord = regexp.MustCompile(`[A-Z]+(?:[a-z0-9]*)|[a-z0-9]+`)

var vendorWords = regexp.MustCompile(`(?i)^(v?nvidia|nvidiactl|v?amd|amdgpu|amdkfd|amdlog|cuda|hip|v?kfd|rocm|rm)$`)

// vendorIn returns the first word of a text that names a vendor.
func vendorIn(text string) string {
	for _, w := range reWord.FindAllString(text, -1) {
		for _, part := range append(splitCaps(w), w) {
			if vendorWords.MatchString(part) && (!strings.EqualFold(part, "rm") || part == "RM") {
				return part
			}
		}
	}
	return ""
}

// splitCaps splits RMClient into RM and Client.
func splitCaps(w string) []string {
	caps := 0
	for caps < len(w) && w[caps] >= 'A' && w[caps] <= 'Z' {
		caps++
	}
	if caps < 2 || caps == len(w) {
		return nil
	}
	return []string{w[:caps-1], w[caps-1:]}
}

func mayNameVendor(path string) bool {
	_, listed := vendorFiles[path]
	return listed || slices.ContainsFunc(vendorFolders, func(f string) bool { return strings.HasPrefix(path, f) })
}

// TestVendorIsNamedBelowTheSeam: outside the drivers no identifier, string or import names a vendor.
func TestVendorIsNamedBelowTheSeam(t *testing.T) {
	used := map[string]bool{}
	for _, f := range sources(t) {
		if f.isTest() || !strings.HasPrefix(f.path, "internal/") && !strings.HasPrefix(f.path, "cmd/") {
			continue
		}
		found := map[string]bool{}
		fset := token.NewFileSet()
		parsed, err := parser.ParseFile(fset, f.path, f.text, 0)
		if err != nil {
			t.Fatal(err)
		}
		note := func(n ast.Node, text string) {
			if w := vendorIn(text); w != "" {
				found[fset.Position(n.Pos()).String()+": "+w+" in "+text] = true
			}
		}
		ast.Inspect(parsed, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.Ident:
				note(n, n.Name)
			case *ast.BasicLit:
				if n.Kind == token.STRING {
					note(n, n.Value)
				}
			}
			return true
		})
		if mayNameVendor(f.path) {
			used[f.path] = used[f.path] || len(found) > 0
			continue
		}
		for _, line := range slices.Sorted(maps.Keys(found)) {
			t.Errorf("%s", line)
		}
	}
	for path := range vendorFiles {
		if !used[path] {
			t.Errorf("%s names no vendor any more: remove it from vendorFiles", path)
		}
	}
}

func TestVendorWords(t *testing.T) {
	for text, want := range map[string]string{
		"RMClient": "RM", "EncodeRM": "RM", "platformNVIDIA": "NVIDIA", "VirtualKFDRoot": "KFD", "amdHub": "amd",
		"on AMD GPUs": "AMD", "envCUDA": "CUDA", "xsched/internal/driver/amd": "amd", "/dev/nvidiactl": "nvidiactl",
		"confirm": "", "ship": "", "warm up": "", "perform": "", "rm -f": "", "camden": "", "ARM": "", "linux/amd64": "",
	} {
		if got := vendorIn(text); got != want {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
}
