// SPDX-License-Identifier: Apache-2.0

package main

import (
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// Names that resemble work or waits but are neither: stream queries and attributes, nodes of graphs
// under construction, and a reset that AMD's runtime ignores.
var notWork = regexp.MustCompile(`^(hipStream(Get|Set|Copy|IsCapturing|UpdateCapture)\w*|hip(Drv)?Graph(Add|Exec|Memcpy|Memset|Kernel|External|Batch)\w*|hipDevicePrimaryCtxReset)$`)

// TestHIPTableIsComplete compares the table and the list of entry points with the exports of the real libraries.
func TestHIPTableIsComplete(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "shim/runtime/hip/testdata/names.txt"))
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]call{}
	for _, c := range table(t, hip) {
		known[c.symbol] = c
	}
	wanted := regexp.MustCompile(`Launch|Async|Memcpy|Memset|_spt$|^hipStream|^hipEvent(Record|Query|Synchronize|Destroy|Elapsed)|Synchronize|GetProcAddress|EntryPoint|GraphUpload|Reset$|hipSetDevice$`)
	nodes := map[string]string{}
	for line := range strings.SplitSeq(string(text), "\n") {
		node, symbol, ok := strings.Cut(line, " ")
		if !ok || strings.HasPrefix(line, "#") {
			continue
		}
		nodes[symbol] = node
		if _, hooked := known[symbol]; !hooked && wanted.MatchString(symbol) && !notWork.MatchString(symbol) {
			t.Errorf("%s is not in the table", symbol)
		}
	}
	for symbol, c := range known {
		if nodes[symbol] != c.node {
			t.Errorf("%s has version %q in the table, %q in the library", symbol, c.node, nodes[symbol])
		}
	}
	if len(nodes) < 500 {
		t.Errorf("only %d names", len(nodes))
	}
	list, err := readEntries(root, hip.dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range list.missing(slices.Sorted(maps.Keys(nodes))) {
		t.Errorf("%s is not in entry_points.txt", name)
	}
}

func TestHIPTableErrors(t *testing.T) {
	for line, want := range map[string]string{
		"hipA 4.2 legacy launch 0 : int":                             "no stream",
		"hipA 4.2 legacy copy default/0 : int":                       "no hipMemcpyKind",
		"hipA 4.2 legacy copy 0/1/2 : hipStream_t":                   "does not know",
		"hipA 4.2 legacy ext 0/1/2 : hipStream_t, int, hipEvent_t":   "no hipEvent_t",
		"hipA 4.2 legacy ext 0 : hipStream_t":                        "takes no position",
		"hipA hipA 4.2 legacy launch 0 : hipStream_t":                "5 fields",
		"hipA 4.2 mine pass - : int":                                 "neither legacy nor thread",
		"hipA 4.2 legacy sync 0/wait : hipStream_t":                  "does not know",
		"hipA 4.2 legacy pass - : int\nhipA 4.2 legacy pass - : int": "duplicate symbol",
	} {
		if _, err := parseTable(hip, line); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: have error %v, want one with %q", line, err, want)
		}
	}
	if _, err := parseTable(cuda, "cuA cuA 2000 legacy copy default/0 : int"); err == nil {
		t.Error("CUDA's table knows HIP's details")
	}
}
