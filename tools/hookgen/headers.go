// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// vendorHeaders says how to find the entry points that a runtime's headers declare.
type vendorHeaders struct {
	main    string     // below the include folder
	also    []string   // included if they are there
	stubs   []string   // headers of others, which are replaced by empty ones
	defines [][]string // one preprocessor run each
	pattern *regexp.Regexp
}

var headersOf = map[string]vendorHeaders{
	"cuda": {
		main:    "cuda.h",
		also:    []string{"cudaGL.h", "cudaEGL.h", "cudaVDPAU.h"},
		stubs:   []string{"GL/gl.h", "EGL/egl.h", "EGL/eglext.h", "vdpau/vdpau.h"},
		defines: [][]string{nil, {"-DCUDA_API_PER_THREAD_DEFAULT_STREAM"}, {"-D__CUDA_API_VERSION_INTERNAL"}},
		pattern: regexp.MustCompile(`\bCUresult\s+(cu[A-Z]\w*)\s*\(`),
	},
	"hip": {
		main:    "hip/hip_runtime_api.h",
		defines: [][]string{{"-D__HIP_PLATFORM_AMD__"}},
		pattern: regexp.MustCompile(`\b(?:hipError_t|int|void|const\s+char\s*\*)\s*((?:__)?hip[A-Z]\w*)\s*\(`),
	},
	"opencl": {
		main:    "CL/cl.h",
		also:    []string{"CL/cl_ext.h", "CL/cl_gl.h", "CL/cl_egl.h", "CL/cl_ext_intel.h"},
		stubs:   []string{"EGL/egl.h", "EGL/eglext.h"},
		defines: [][]string{{"-DCL_TARGET_OPENCL_VERSION=300", "-DCL_ENABLE_BETA_EXTENSIONS"}},
		pattern: regexp.MustCompile(`\b(cl[A-Z]\w*[a-zA-Z0-9])\s*\(`),
	},
}

// declared returns the entry points that the headers below an include folder declare.
func declared(dir, include string) ([]string, error) {
	texts, err := preprocessed(dir, include)
	if err != nil {
		return nil, err
	}
	found := map[string]bool{}
	for _, text := range texts {
		for _, m := range headersOf[dir].pattern.FindAllStringSubmatch(text, -1) {
			if !strings.HasSuffix(m[1], "_t") && !strings.HasSuffix(m[1], "_fn") {
				found[m[1]] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(found)), nil
}

// preprocessed returns what the headers declare, once for each set of defines.
func preprocessed(dir, include string) ([]string, error) {
	h := headersOf[dir]
	stubs, err := os.MkdirTemp("", "hookgen")
	if err != nil {
		return nil, fmt.Errorf("create temporary directory: %w", err)
	}
	defer os.RemoveAll(stubs)
	for _, stub := range h.stubs {
		if err := writeIfChanged(filepath.Join(stubs, stub), nil); err != nil {
			return nil, err
		}
	}
	var source strings.Builder
	source.WriteString("#include <" + h.main + ">\n")
	for _, name := range h.also {
		if _, err := os.Stat(filepath.Join(include, name)); err == nil {
			source.WriteString("#include <" + name + ">\n")
		}
	}
	compiler := os.Getenv("CC")
	if compiler == "" {
		compiler = "cc"
	}
	var texts []string
	for _, defines := range h.defines {
		args := append([]string{"-E", "-P", "-x", "c", "-isystem", include, "-isystem", stubs}, defines...)
		cmd := exec.Command(compiler, append(args, "-")...)
		cmd.Stdin = strings.NewReader(source.String())
		text, err := cmd.Output()
		if err != nil {
			return nil, fmt.Errorf("preprocess %s in %s: %w", h.main, include, err)
		}
		texts = append(texts, string(text))
	}
	return texts, nil
}

// checkHeaders fails if headers below the folder declare an entry point without a class.
func checkHeaders(root, include string) error {
	var unknown []string
	checked := 0
	for _, dir := range runtimes {
		if _, err := os.Stat(filepath.Join(include, headersOf[dir].main)); err != nil {
			continue
		}
		names, err := declared(dir, include)
		if err != nil {
			return err
		}
		list, err := readEntries(root, dir)
		if err != nil {
			return err
		}
		unknown = append(unknown, list.missing(names)...)
		checked++
	}
	switch {
	case checked == 0:
		return fmt.Errorf("%s has no vendor's header: give a folder with cuda.h, hip/hip_runtime_api.h or CL/cl.h", include)
	case len(unknown) > 0:
		return fmt.Errorf("%d entry points have no class in entry_points.txt: %s", len(unknown), strings.Join(unknown, ", "))
	}
	return nil
}
