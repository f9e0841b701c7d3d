// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/zip"
	"context"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

const root = "../.."

func table(t *testing.T) []call {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, "shim/cuda/hooks.table"))
	if err != nil {
		t.Fatal(err)
	}
	calls, err := parseTable(cuda, string(text))
	if err != nil {
		t.Fatal(err)
	}
	return calls
}

func TestGeneratedFilesAreFresh(t *testing.T) {
	files, err := generate(root)
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range files {
		have, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if string(have) != string(want) {
			t.Errorf("%s is stale: go run ./tools/hookgen", path)
		}
	}
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
		"cuA cuA 1 legacy pass - :\ncuA cuA 1 legacy use -:": "twice",
	} {
		if _, err := parseTable(cuda, line); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: have error %v, want one with %q", line, err, want)
		}
	}
}

// TestPrototypes compares our prototypes with NVIDIA's cuda.h, which may not be
// part of the repository: it comes from the package index.
func TestPrototypes(t *testing.T) {
	if _, err := exec.LookPath("cc"); err != nil {
		t.Skip("no C compiler")
	}
	vendor := cudaHeader(t)
	dir := filepath.Join(root, "shim/cuda")
	if err := checkPrototypes(dir, vendor); err != nil {
		t.Fatal(err)
	}
	// And the check can fail: a table with one wrong parameter.
	broken := t.TempDir()
	for _, name := range []string{"test_prototypes.c", "constants.h"} {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(broken, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	calls := table(t)
	for i := range calls {
		if calls[i].symbol == "cuMemcpyHtoD" {
			calls[i].types = []string{"CUdeviceptr_v2", "const void *", "size_t"} // those of _v2
		}
	}
	if err := os.WriteFile(filepath.Join(broken, "hooks_gen.h"), header(cuda, calls), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := checkPrototypes(broken, vendor); err == nil || !strings.Contains(err.Error(), "cuMemcpyHtoD") {
		t.Errorf("a wrong prototype was not found: %v", err)
	}
}

// cudaHeader unpacks cuda.h from the nvidia-cuda-runtime wheel, or skips the test.
func cudaHeader(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	pip := exec.CommandContext(ctx, "python3", "-m", "pip", "download", "--quiet", "--no-deps", "--dest", dir,
		"nvidia-cuda-runtime==13.0.96")
	if out, err := pip.CombinedOutput(); err != nil {
		t.Skipf("prototypes not compared: cuda.h could not be had from the package index: %v: %.300s", err, out)
	}
	wheels, err := filepath.Glob(filepath.Join(dir, "*.whl"))
	if err != nil || len(wheels) != 1 {
		t.Fatalf("find the wheel: %v, %v", wheels, err)
	}
	wheel, err := zip.OpenReader(wheels[0])
	if err != nil {
		t.Fatal(err)
	}
	defer wheel.Close()
	for _, file := range wheel.File {
		if !strings.HasSuffix(file.Name, "/include/cuda.h") {
			continue
		}
		in, err := file.Open()
		if err != nil {
			t.Fatal(err)
		}
		defer in.Close()
		path := filepath.Join(dir, "cuda.h")
		out, err := os.Create(path)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.Copy(out, in); err != nil {
			t.Fatal(err)
		}
		if err := out.Close(); err != nil {
			t.Fatal(err)
		}
		return path
	}
	t.Fatal("no cuda.h in the wheel")
	return ""
}

// TestPreload runs the built shim in programs on the null driver.
func TestPreload(t *testing.T) {
	for _, need := range []string{"make", "bash", "gcc"} {
		if _, err := exec.LookPath(need); err != nil {
			t.Skipf("no %s", need)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	for _, args := range [][]string{
		{"make", "-s", "build/libxsched.so", "null"},
		{"bash", "shim/cuda/test_preload.sh"},
	} {
		cmd := exec.CommandContext(ctx, args[0], args[1:]...)
		cmd.Dir = root
		cmd.WaitDelay = 5 * time.Second
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v\n%s", strings.Join(args, " "), err, out)
		}
		t.Logf("%s", out)
	}
}
