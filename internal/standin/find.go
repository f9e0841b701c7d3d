// SPDX-License-Identifier: Apache-2.0

// Package standin writes stand-ins for GPU runtimes: libraries without code that the loader finds under a
// runtime's name, and that make it load the shim and then the runtime. It knows nothing of scheduling.
package standin

import (
	"bytes"
	"cmp"
	"debug/elf"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
)

// Names are the file names by which programs load the runtimes that the shim hooks.
func Names() []string {
	return []string{"libcuda.so.1", "libamdhip64.so.5", "libamdhip64.so.6", "libamdhip64.so.7", "libOpenCL.so.1"}
}

// Find returns the path of a runtime as the loader would find it, without stand-ins; empty: there is none.
func Find(name string) string {
	var candidates []string
	for _, dir := range filepath.SplitList(os.Getenv("LD_LIBRARY_PATH")) {
		candidates = append(candidates, filepath.Join(dir, name))
	}
	// The loader's cache contains each path, with zero bytes around it.
	cache, _ := os.ReadFile("/etc/ld.so.cache")
	for text := range bytes.SplitSeq(cache, []byte{0}) {
		if path := string(text); strings.HasPrefix(path, "/") && filepath.Base(path) == name {
			candidates = append(candidates, path)
		}
	}
	for _, dir := range []string{
		filepath.Join(cmp.Or(os.Getenv("ROCM_PATH"), "/opt/rocm"), "lib"), "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu",
		"/usr/lib64", "/usr/lib", "/usr/local/nvidia/lib64", "/usr/lib/wsl/lib",
	} {
		candidates = append(candidates, filepath.Join(dir, name))
	}
	for _, path := range candidates {
		if path, err := filepath.Abs(path); err == nil && isRuntime(path) {
			return path
		}
	}
	return ""
}

// machine is this machine's, in an ELF header.
func machine() elf.Machine {
	if runtime.GOARCH == "arm64" {
		return elf.EM_AARCH64
	}
	return elf.EM_X86_64
}

// isRuntime reports whether a file is a library for this machine and no stand-in, which has no code.
func isRuntime(path string) bool {
	file, err := elf.Open(path)
	if err != nil {
		return false
	}
	defer file.Close()
	code := slices.ContainsFunc(file.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_LOAD && p.Flags&elf.PF_X != 0 })
	return code && file.Class == elf.ELFCLASS64 && file.Machine == machine()
}

// symbolVersions returns the names of the symbol versions that a library defines. The loader warns of a
// library that lacks one that a program needs.
func symbolVersions(path string) ([]string, error) {
	file, err := elf.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	defer file.Close()
	var names []string
	defined, _ := file.DynamicVersions() // an error: it has none
	for _, v := range defined {
		if v.Flags&elf.VER_FLG_BASE == 0 {
			names = append(names, v.Name)
		}
	}
	return names, nil
}
