// SPDX-License-Identifier: Apache-2.0

// Hookgen writes the entry points of the shim, and those of the null driver, from
// shim/runtime/NAME/hooks.table. The build runs it; its output is not committed.
//
//	go run ./tools/hookgen                       write the generated files below build/gen
//	go run ./tools/hookgen -check path/cuda.h    compile our prototypes against NVIDIA's
//	go run ./tools/hookgen -check path/hip/hip_runtime_api.h    against AMD's
//	go run ./tools/hookgen -check path/CL/cl.h    against Khronos'
//	go run ./tools/hookgen -table [-version 13.0]    print every entry point with its class
//	go run ./tools/hookgen -page                 write docs/platforms/hooks.md
//	go run ./tools/hookgen -headers DIR          fail if headers in DIR have a name without a class
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
	out := flags.String("out", "build/gen", "directory for the generated files")
	check := flags.String("check", "", "compile the prototypes against this cuda.h, hip_runtime_api.h or cl.h instead of writing files")
	table := flags.Bool("table", false, "print every entry point with its class")
	version := flags.String("version", "", "with -table: only entry points of this version")
	writePage := flags.Bool("page", false, "write docs/platforms/hooks.md")
	headers := flags.String("headers", "", "fail if the vendors' headers in this folder have an entry point without a class")
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return nil
		}
		return err
	}
	if *check != "" {
		d := cuda
		switch filepath.Base(*check) {
		case "hip_runtime_api.h":
			d = hip
		case "cl.h":
			d = opencl
		}
		return checkPrototypes(filepath.Join(*root, "shim", "runtime", d.dir), *check)
	}
	switch {
	case *table:
		return printTable(os.Stdout, *root, *version)
	case *headers != "":
		return checkHeaders(*root, *headers)
	case *writePage:
		text, err := page(*root)
		if err != nil {
			return err
		}
		return writeIfChanged(filepath.Join(*root, "docs/platforms/hooks.md"), text)
	}
	files, err := generate(*root)
	if err != nil {
		return err
	}
	for path, text := range files {
		if err := writeIfChanged(filepath.Join(*out, path), text); err != nil {
			return err
		}
	}
	return nil
}

// generate returns every generated file by its path below the output directory.
func generate(root string) (map[string][]byte, error) {
	known, err := knownNames(root)
	if err != nil {
		return nil, err
	}
	files := map[string][]byte{"runtime/known_gen.c": known}
	for _, d := range dialects {
		calls, err := readTable(d, filepath.Join(root, "shim", "runtime", d.dir))
		if err != nil {
			return nil, err
		}
		dir := filepath.Join("runtime", d.dir)
		switch d.dir {
		case cuda.dir:
			list, err := readEntries(root, d.dir)
			if err != nil {
				return nil, err
			}
			files["null/null_gen.c"] = nullDriver(calls)
			calls = withStubs(d, calls, list)
			files[filepath.Join(dir, "stubs_gen.S")] = stubs(d, calls)
			files[filepath.Join(dir, "hooks_gen.c")] = append(entryPoints(d, calls), kindsOf(d, calls, list)...)
		case hip.dir:
			files[filepath.Join(dir, "hooks_gen.c")] = entryPoints(d, calls)
			files["null/null_hip_gen.c"] = nullRuntime(calls)
			files["null/null_hip_gen.map"] = versionMap(calls)
			files[filepath.Join(dir, "test_invoke_gen.c")] = invocations(calls)
		default:
			files[filepath.Join(dir, "hooks_gen.c")] = entryPoints(d, calls)
		}
		files[filepath.Join(dir, "hooks_gen.h")] = header(d, calls)
	}
	return files, nil
}

func readTable(d dialect, dir string) ([]call, error) {
	path := filepath.Join(dir, "hooks.table")
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read table: %w", err)
	}
	calls, err := parseTable(d, string(text))
	if err != nil {
		return nil, fmt.Errorf("parse %s: %w", path, err)
	}
	return calls, nil
}

// writeIfChanged keeps the timestamp of an unchanged file, so that make does not rebuild.
func writeIfChanged(path string, text []byte) error {
	if old, err := os.ReadFile(path); err == nil && bytes.Equal(old, text) {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("create output directory: %w", err)
	}
	if err := os.WriteFile(path, text, 0o644); err != nil {
		return fmt.Errorf("write generated file: %w", err)
	}
	return nil
}

// checkPrototypes compiles test_prototypes.c, which declares every call twice: once by
// the vendor's header and once by ours. A difference is a compile error. Our header is
// generated from the table, unless dir has one.
func checkPrototypes(dir, vendor string) error {
	compiler := os.Getenv("CC")
	if compiler == "" {
		compiler = "cc"
	}
	include, d := filepath.Dir(vendor), dialectOf(filepath.Base(dir))
	if d.dir != cuda.dir {
		include = filepath.Dir(include)
	}
	generated, err := os.MkdirTemp("", "hookgen")
	if err != nil {
		return fmt.Errorf("create temporary directory: %w", err)
	}
	defer os.RemoveAll(generated)
	if _, err := os.Stat(filepath.Join(dir, "hooks_gen.h")); err != nil {
		calls, err := readTable(d, dir)
		if err != nil {
			return err
		}
		if err := writeIfChanged(filepath.Join(generated, "hooks_gen.h"), header(d, calls)); err != nil {
			return err
		}
	}
	cmd := exec.Command(compiler, "-std=c11", "-fsyntax-only", "-Wall", "-Wextra", "-Werror",
		"-Wno-deprecated-declarations", "-isystem", include, "-I", dir, "-I", generated,
		filepath.Join(dir, "test_prototypes.c"))
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("compare prototypes with %s: %w\n%s", vendor, err, out)
	}
	return nil
}
