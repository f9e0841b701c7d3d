// SPDX-License-Identifier: Apache-2.0

// Hookgen writes the CUDA and HIP entry points of the shim, and those of the null
// driver, from shim/runtime/cuda/hooks.table and shim/runtime/hip/hooks.table.
//
//	go run ./tools/hookgen                       write the generated files
//	go run ./tools/hookgen -check path/cuda.h    compile our prototypes against NVIDIA's
//	go run ./tools/hookgen -check path/hip/hip_runtime_api.h    against AMD's
package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "hookgen:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	flags := flag.NewFlagSet("hookgen", flag.ContinueOnError)
	root := flags.String("root", ".", "root of the repository")
	check := flags.String("check", "", "compile the prototypes against this cuda.h or hip_runtime_api.h instead of writing files")
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return nil
		}
		return err
	}
	if *check != "" {
		d := cuda
		if filepath.Base(*check) == "hip_runtime_api.h" {
			d = hip
		}
		return checkPrototypes(filepath.Join(*root, "shim", "runtime", d.dir), *check)
	}
	files, err := generate(*root)
	if err != nil {
		return err
	}
	for path, text := range files {
		if err := writeIfChanged(path, text); err != nil {
			return err
		}
	}
	return nil
}

// generate returns every generated file by its path.
func generate(root string) (map[string][]byte, error) {
	files := map[string][]byte{}
	for _, d := range []dialect{cuda, hip} {
		dir := filepath.Join(root, "shim", "runtime", d.dir)
		path := filepath.Join(dir, "hooks.table")
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("read table: %w", err)
		}
		calls, err := parseTable(d, string(text))
		if err != nil {
			return nil, fmt.Errorf("parse %s: %w", path, err)
		}
		files[filepath.Join(dir, "hooks_gen.h")] = header(d, calls)
		files[filepath.Join(dir, "hooks_gen.c")] = entryPoints(d, calls)
		null := filepath.Join(root, "shim", "null")
		if d.dir == cuda.dir {
			files[filepath.Join(null, "null_gen.c")] = nullDriver(calls)
		} else {
			files[filepath.Join(null, "null_hip_gen.c")] = nullRuntime(calls)
			files[filepath.Join(null, "null_hip_gen.map")] = versionMap(calls)
			files[filepath.Join(dir, "test_invoke_gen.c")] = invocations(calls)
		}
	}
	return files, nil
}

// writeIfChanged leaves the file's time alone where nothing changed, so that make does not rebuild.
func writeIfChanged(path string, text []byte) error {
	if old, err := os.ReadFile(path); err == nil && bytes.Equal(old, text) {
		return nil
	}
	if err := os.WriteFile(path, text, 0o644); err != nil {
		return fmt.Errorf("write generated file: %w", err)
	}
	return nil
}

// checkPrototypes compiles test_prototypes.c, which declares every call twice: once by
// the vendor's header and once by ours. A difference is a compile error.
func checkPrototypes(dir, header string) error {
	compiler := os.Getenv("CC")
	if compiler == "" {
		compiler = "cc"
	}
	include := filepath.Dir(header)
	if filepath.Base(dir) == hip.dir {
		include = filepath.Dir(include)
	}
	cmd := exec.Command(compiler, "-std=c11", "-fsyntax-only", "-Wall", "-Wextra", "-Werror",
		"-Wno-deprecated-declarations", "-isystem", include, "-I", dir,
		filepath.Join(dir, "test_prototypes.c"))
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("compare prototypes with %s: %w\n%s", header, err, out)
	}
	return nil
}
