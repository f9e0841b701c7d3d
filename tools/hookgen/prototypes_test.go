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

// TestPrototypes compares our prototypes with the vendors' headers, which may not be part of the
// repository.
func TestPrototypes(t *testing.T) {
	if _, err := exec.LookPath("cc"); err != nil {
		t.Skip("no C compiler")
	}
	for _, c := range []struct {
		dialect
		vendor func(*testing.T) string
		symbol string
		wrong  []string // parameters of a function like it
	}{
		{cuda, cudaHeader, "cuMemcpyHtoD", []string{"CUdeviceptr_v2", "const void *", "size_t"}},
		{hip, hipHeader, "hipMemsetD8", []string{"hipDeviceptr_t", "int", "size_t"}},
	} {
		t.Run(c.dir, func(t *testing.T) {
			vendor := c.vendor(t)
			dir := filepath.Join(root, "shim", "runtime", c.dir)
			if err := checkPrototypes(dir, vendor); err != nil {
				t.Fatal(err)
			}
			// And the check can fail: a table with one wrong parameter.
			broken := filepath.Join(t.TempDir(), c.dir)
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
			calls := table(t, c.dialect)
			for i := range calls {
				if calls[i].symbol == c.symbol {
					calls[i].types = c.wrong
				}
			}
			if err := os.WriteFile(filepath.Join(broken, "hooks_gen.h"), header(c.dialect, calls), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := checkPrototypes(broken, vendor); err == nil || !strings.Contains(err.Error(), c.symbol) {
				t.Errorf("a wrong prototype was not found: %v", err)
			}
		})
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
