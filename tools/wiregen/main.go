// SPDX-License-Identifier: Apache-2.0

// Wiregen generates the Go side of the shim contract: package wire from shim/include/xsched/wire.h,
// and each driver's frames from its frames.h.
//
//	go run ./tools/wiregen [-root DIR] [-layout]
//
// With -layout it writes nothing and prints the layout of the contract, the content of
// internal/wire/testdata/layout-N.txt for version N.
//
// The parser accepts only the small subset of C that the headers use and rejects everything else,
// so that the contract can't outgrow it.
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
)

// contract is a header and its generated Go file.
type contract struct{ header, file string }

const wireHeader = "shim/include/xsched/wire.h"

// contracts lists the headers; a driver with its own frames adds one line.
var contracts = []contract{
	{wireHeader, "internal/wire/wire_gen.go"},
	{"shim/driver/rm/frames.h", "internal/driver/nvidia/frames_gen.go"},
	{"shim/driver/kfd/frames.h", "internal/driver/amd/frames_gen.go"},
}

func main() {
	root := flag.String("root", ".", "root directory of the source tree")
	describe := flag.Bool("layout", false, "print the layout of the contract instead")
	flag.Parse()
	if *describe {
		text, _, err := layout(*root)
		if err != nil {
			fmt.Fprintln(os.Stderr, "wiregen:", err)
			os.Exit(1)
		}
		fmt.Print(text)
		return
	}
	for _, c := range contracts {
		code, err := generate(*root, c)
		if err == nil {
			err = os.WriteFile(filepath.Join(*root, c.file), code, 0o644)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "wiregen:", err)
			os.Exit(1)
		}
	}
}

// load parses a header and those that it includes.
func load(root string, c contract) (*header, error) {
	src, err := read(filepath.Join(root, wireHeader))
	if err != nil {
		return nil, fmt.Errorf("read header: %w", err)
	}
	h, err := parse(src, nil)
	if err != nil {
		return nil, fmt.Errorf("parse %s: %w", wireHeader, err)
	}
	if c.header != wireHeader {
		b, err := os.ReadFile(filepath.Join(root, c.header))
		if err != nil {
			return nil, fmt.Errorf("read header: %w", err)
		}
		if h, err = parse(string(b), h); err != nil {
			return nil, fmt.Errorf("parse %s: %w", c.header, err)
		}
	}
	return h, nil
}

// generate returns the Go file of a header.
func generate(root string, c contract) ([]byte, error) {
	h, err := load(root, c)
	if err != nil {
		return nil, err
	}
	code, err := emit(h, c)
	if err != nil {
		return nil, fmt.Errorf("generate from %s: %w", c.header, err)
	}
	return code, nil
}

var reInclude = regexp.MustCompile(`(?m)^#include "xsched/(\w+\.h)".*$`)

// read returns a header with the contract's own includes expanded.
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
