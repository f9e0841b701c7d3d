// SPDX-License-Identifier: Apache-2.0

// Wiregen writes the Go side of shim/include/xsched/wire.h.
//
//	go run ./tools/wiregen [-in shim/include/xsched/wire.h] [-out internal/wire/wire_gen.go]
//
// It reads the small subset of C that the header allows itself and refuses
// anything else, so that the contract can't grow past what is understood here.
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
)

func main() {
	in := flag.String("in", "shim/include/xsched/wire.h", "header to read")
	out := flag.String("out", "internal/wire/wire_gen.go", "Go file to write")
	flag.Parse()
	if err := run(*in, *out); err != nil {
		fmt.Fprintln(os.Stderr, "wiregen:", err)
		os.Exit(1)
	}
}

func run(in, out string) error {
	src, err := read(in)
	if err != nil {
		return fmt.Errorf("read header: %w", err)
	}
	h, err := parse(src)
	if err != nil {
		return fmt.Errorf("parse %s: %w", in, err)
	}
	code, err := emit(h)
	if err != nil {
		return fmt.Errorf("generate from %s: %w", in, err)
	}
	if err := os.WriteFile(out, code, 0o644); err != nil {
		return fmt.Errorf("write Go file: %w", err)
	}
	return nil
}

var reInclude = regexp.MustCompile(`(?m)^#include "xsched/(\w+\.h)".*$`)

// read returns a header with the contract's own headers in place of their #include lines.
func read(name string) (string, error) {
	src, err := os.ReadFile(name)
	if err != nil {
		return "", err
	}
	text := reInclude.ReplaceAllStringFunc(string(src), func(line string) string {
		included, e := read(filepath.Join(filepath.Dir(name), reInclude.FindStringSubmatch(line)[1]))
		if e != nil {
			err = e
		}
		return included
	})
	return text, err
}
