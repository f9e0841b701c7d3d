// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestPrototypes compares our prototypes with the vendors' headers. Their licences keep the headers
// out of the repository; `make setup` downloads them.
func TestPrototypes(t *testing.T) {
	for _, c := range []struct {
		dialect
		header string
		symbol string
		wrong  []string // parameters of a function like it
	}{
		{cuda, "cuda.h", "cuMemcpyHtoD", []string{"CUdeviceptr_v2", "const void *", "size_t"}},
		{hip, "hip/hip_runtime_api.h", "hipMemsetD8", []string{"hipDeviceptr_t", "int", "size_t"}},
		{opencl, "CL/cl.h", "clEnqueueUnmapMemObject", []string{"cl_command_queue", "cl_mem", "size_t", "cl_uint", "const cl_event *", "cl_event *"}},
	} {
		t.Run(c.dir, func(t *testing.T) {
			vendor := vendorHeader(t, c.header)
			dir := filepath.Join(root, "shim", "runtime", c.dir)
			if err := checkPrototypes(dir, vendor); err != nil {
				t.Fatal(err)
			}
			// Verify that the check can fail: change one parameter of the table.
			broken := filepath.Join(t.TempDir(), c.dir)
			if err := os.Mkdir(broken, 0o700); err != nil {
				t.Fatal(err)
			}
			sources, err := filepath.Glob(filepath.Join(dir, "*.[ch]"))
			if err != nil {
				t.Fatal(err)
			}
			for _, path := range sources {
				text, err := os.ReadFile(path)
				if err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(filepath.Join(broken, filepath.Base(path)), text, 0o600); err != nil {
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

// vendorHeader finds a vendor's header, installed on the system or by `make setup`.
func vendorHeader(t *testing.T, name string) string {
	t.Helper()
	setup := filepath.Join(root, ".setup", "include", name)
	for _, path := range []string{setup, filepath.Join("/usr/include", name)} {
		if _, err := os.Stat(path); err == nil {
			return path
		}
	}
	t.Skipf("no %s: run make setup", name)
	return ""
}
