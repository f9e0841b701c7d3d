// SPDX-License-Identifier: Apache-2.0

package embedded

import (
	"debug/elf"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// newestGlibc is the newest symbol version that preloaded libraries may need.
// PyTorch wheels require it too (manylinux_2_28).
var newestGlibc = [2]int{2, 28}

// exported returns the patterns of the shim's exported names, from the exports.txt files.
func exported(t *testing.T) []string {
	t.Helper()
	var patterns []string
	for _, depth := range []string{"*", "*/*"} {
		files, err := filepath.Glob("../../shim/" + depth + "/exports.txt")
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range files {
			text, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			for line := range strings.Lines(string(text)) {
				if pattern, _, _ := strings.Cut(line, "#"); strings.TrimSpace(pattern) != "" {
					patterns = append(patterns, strings.TrimSpace(pattern))
				}
			}
		}
	}
	return patterns
}

// builds returns the built artefacts of that name, for all architectures.
func builds(t *testing.T, name string) map[string]*elf.File {
	t.Helper()
	found := map[string]*elf.File{}
	for _, arch := range []string{"amd64", "arm64"} {
		file, err := elf.Open(filepath.Join("files", arch, name))
		if os.IsNotExist(err) {
			continue
		}
		if err != nil {
			t.Fatalf("%s: %v", arch, err)
		}
		t.Cleanup(func() { _ = file.Close() })
		found[arch] = file
	}
	if len(found) == 0 {
		if os.Getenv("XSCHED_CI") == "1" {
			t.Fatalf("%s is not built", name)
		}
		t.Skipf("%s is not built; run `make build` first", name)
	}
	return found
}

// glibcVersion parses GLIBC_2.17; it rejects GLIBC_PRIVATE and GCC_3.0.
func glibcVersion(version string) (parsed [2]int, ok bool) {
	text, ok := strings.CutPrefix(version, "GLIBC_")
	if !ok {
		return parsed, false
	}
	parts := strings.Split(text, ".")
	for i := range min(len(parts), 2) {
		n, err := strconv.Atoi(parts[i])
		if err != nil {
			return parsed, false
		}
		parsed[i] = n
	}
	return parsed, true
}

func TestPreloadedLibrariesNeedOldGlibc(t *testing.T) {
	for _, name := range []string{Shim, VirtualRM, VirtualCUDA, VirtualKFD, VirtualHIP} {
		for arch, file := range builds(t, name) {
			symbols, err := file.ImportedSymbols()
			if err != nil {
				t.Fatalf("%s %s: %v", arch, name, err)
			}
			for _, s := range symbols {
				if s.Version == "" {
					continue
				}
				v, ok := glibcVersion(s.Version)
				if !ok || slices.Compare(v[:], newestGlibc[:]) > 0 {
					t.Errorf("%s %s needs %s@%s, newer than GLIBC_%d.%d", arch, name, s.Name, s.Version, newestGlibc[0], newestGlibc[1])
				}
			}
		}
	}
}

func TestShimNeedsOnlyLibc(t *testing.T) {
	want := []string{"libc.so.6", "libdl.so.2", "libpthread.so.0"}
	for arch, file := range builds(t, Shim) {
		needed, err := file.ImportedLibraries()
		if err != nil {
			t.Fatalf("%s: %v", arch, err)
		}
		slices.Sort(needed)
		// On some architectures the loader defines __tls_get_addr and similar symbols.
		needed = slices.DeleteFunc(needed, func(n string) bool { return strings.HasPrefix(n, "ld-linux") })
		if !slices.Equal(needed, want) {
			t.Errorf("%s needs %v, want %v", arch, needed, want)
		}
	}
}

func TestShimExportsOnlyWhatItShould(t *testing.T) {
	patterns := exported(t)
	for arch, file := range builds(t, Shim) {
		symbols, err := file.DynamicSymbols()
		if err != nil {
			t.Fatalf("%s: %v", arch, err)
		}
		seen := map[string]bool{}
		for _, s := range symbols {
			if s.Section == elf.SHN_UNDEF || s.Section == elf.SHN_ABS || elf.ST_BIND(s.Info) == elf.STB_LOCAL {
				continue
			}
			seen[s.Name] = true
			if !slices.ContainsFunc(patterns, func(p string) bool { ok, _ := path.Match(p, s.Name); return ok }) {
				t.Errorf("%s exports %s", arch, s.Name)
			}
		}
		for _, must := range []string{"ioctl", "dlsym", "cuLaunchKernel", "cuGetProcAddress", "cuGetProcAddress_v2", "cuCtxSynchronize", "XQueueCreate", "XHintPriority", "CudaQueueCreate", "HwCommandCreateCallback", "xs_request_begin"} {
			if !seen[must] {
				t.Errorf("%s does not export %s: the shim would be inert", arch, must)
			}
		}
	}
}

// TestShimIsAGoodGuest checks for symbols that a preloaded library must not use.
func TestShimIsAGoodGuest(t *testing.T) {
	for arch, file := range builds(t, Shim) {
		for _, p := range file.Progs {
			if p.Type == elf.PT_GNU_STACK && p.Flags&elf.PF_X != 0 {
				t.Errorf("%s asks for an executable stack", arch)
			}
			if p.Type == elf.PT_LOAD && p.Flags&elf.PF_X != 0 && p.Flags&elf.PF_W != 0 {
				t.Errorf("%s has a segment that is writable and executable", arch)
			}
		}
		if values, err := file.DynValue(elf.DT_TEXTREL); err == nil && len(values) > 0 {
			t.Errorf("%s has text relocations", arch)
		}
		for _, tag := range []elf.DynTag{elf.DT_RPATH, elf.DT_RUNPATH} {
			if paths, err := file.DynString(tag); err == nil && len(paths) > 0 {
				t.Errorf("%s has a search path of its own: %v", arch, paths)
			}
		}
	}
}
