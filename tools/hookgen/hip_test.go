// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

func hipTable(t *testing.T) []call {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, "shim/hip/hooks.table"))
	if err != nil {
		t.Fatal(err)
	}
	calls, err := parseTable(hip, string(text))
	if err != nil {
		t.Fatal(err)
	}
	return calls
}

// Names that look like work or like waiting and are neither: questions about a stream, its
// attributes, nodes of graphs that are only being built, and a reset that AMD's runtime ignores.
var notWork = regexp.MustCompile(`^(hipStream(Get|Set|Copy|IsCapturing|UpdateCapture)\w*|hip(Drv)?Graph(Add|Exec|Memcpy|Memset|Kernel|External|Batch)\w*|hipDevicePrimaryCtxReset)$`)

// TestHIPTableIsComplete holds the table against what the real libraries export.
func TestHIPTableIsComplete(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "shim/hip/testdata/names.txt"))
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]call{}
	for _, c := range hipTable(t) {
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
		"hipA 4.2 legacy pass - : int\nhipA 4.2 legacy pass - : int": "twice",
	} {
		if _, err := parseTable(hip, line); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: have error %v, want one with %q", line, err, want)
		}
	}
	if _, err := parseTable(cuda, "cuA cuA 2000 legacy copy default/0 : int"); err == nil {
		t.Error("CUDA's table knows HIP's details")
	}
}

// TestHIPPrototypes compares our prototypes with AMD's hip_runtime_api.h, from Debian's libamdhip64-dev.
func TestHIPPrototypes(t *testing.T) {
	if _, err := exec.LookPath("cc"); err != nil {
		t.Skip("no C compiler")
	}
	vendor := hipHeader(t)
	dir := filepath.Join(root, "shim/hip")
	if err := checkPrototypes(dir, vendor); err != nil {
		t.Fatal(err)
	}
	// And the check can fail: a table with one wrong parameter.
	broken := filepath.Join(t.TempDir(), "hip")
	if err := os.Mkdir(broken, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"test_prototypes.c", "constants.h"} {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(broken, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	calls := hipTable(t)
	for i := range calls {
		if calls[i].symbol == "hipMemsetD8" {
			calls[i].types = []string{"hipDeviceptr_t", "int", "size_t"} // those of hipMemsetD32
		}
	}
	if err := os.WriteFile(filepath.Join(broken, "hooks_gen.h"), header(hip, calls), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := checkPrototypes(broken, vendor); err == nil || !strings.Contains(err.Error(), "hipMemsetD8") {
		t.Errorf("a wrong prototype was not found: %v", err)
	}
}

// hipHeader is the installed header, or that of the Debian package, or skips the test.
func hipHeader(t *testing.T) string {
	t.Helper()
	const name = "usr/include/hip/hip_runtime_api.h"
	if _, err := os.Stat("/" + name); err == nil {
		return "/" + name
	}
	dir := t.TempDir()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	for _, command := range []string{"apt-get download -qq libamdhip64-dev", "dpkg -x libamdhip64-dev_*.deb ."} {
		cmd := exec.CommandContext(ctx, "sh", "-c", command)
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err != nil {
			if os.Getenv("XSCHED_CI") == "1" {
				t.Fatalf("%s: %v: %.300s", command, err, out)
			}
			t.Skipf("prototypes not compared: libamdhip64-dev could not be had: %v: %.300s", err, out)
		}
	}
	return filepath.Join(dir, name)
}

// TestHIPPreload runs the built shim in programs on the null runtime, and on AMD's own where it is installed.
func TestHIPPreload(t *testing.T) {
	for _, need := range []string{"make", "bash", "gcc"} {
		if _, err := exec.LookPath(need); err != nil {
			t.Skipf("no %s", need)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	run := func(args ...string) ([]byte, error) {
		cmd := exec.CommandContext(ctx, args[0], args[1:]...)
		cmd.Dir = root
		cmd.WaitDelay = 5 * time.Second
		return cmd.CombinedOutput()
	}
	if out, err := run("make", "-s", "build/libxsched.so", "null"); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if out, err := run("bash", "shim/hip/test_preload.sh"); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	out, err := run("bash", "shim/hip/test_real.sh")
	exit, ok := errors.AsType[*exec.ExitError](err)
	switch {
	case err == nil:
		t.Logf("%s", out)
	case ok && exit.ExitCode() == 77 && os.Getenv("XSCHED_CI") != "1":
		t.Skipf("%s", out)
	default:
		t.Errorf("%v\n%s", err, out)
	}
}
