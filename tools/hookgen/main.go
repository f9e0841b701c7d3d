// SPDX-License-Identifier: Apache-2.0

// Hookgen writes the CUDA entry points of the shim, and those of the null
// driver, from shim/cuda/hooks.table.
//
//	go run ./tools/hookgen                       write the generated files
//	go run ./tools/hookgen -check path/cuda.h    compile our prototypes against NVIDIA's
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
	check := flags.String("check", "", "compile the prototypes against this cuda.h instead of writing files")
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return nil
		}
		return err
	}
	dir := filepath.Join(*root, "shim", "cuda")
	if *check != "" {
		return checkPrototypes(dir, *check)
	}
	path := filepath.Join(dir, "hooks.table")
	text, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("read table: %w", err)
	}
	calls, err := parseTable(string(text))
	if err != nil {
		return fmt.Errorf("parse %s: %w", path, err)
	}
	for _, file := range []struct {
		path string
		text []byte
	}{
		{filepath.Join(dir, "hooks_gen.h"), header(calls)},
		{filepath.Join(dir, "hooks_gen.c"), entryPoints(calls)},
		{filepath.Join(*root, "shim", "null", "null_gen.c"), nullDriver(calls)},
	} {
		if err := writeIfChanged(file.path, file.text); err != nil {
			return err
		}
	}
	return nil
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
	cmd := exec.Command(compiler, "-std=c11", "-fsyntax-only", "-Wall", "-Wextra", "-Werror",
		"-Wno-deprecated-declarations", "-isystem", filepath.Dir(header), "-I", dir,
		filepath.Join(dir, "test_prototypes.c"))
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("compare prototypes with %s: %w\n%s", header, err, out)
	}
	return nil
}
