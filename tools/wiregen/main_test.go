// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"os"
	"strings"
	"testing"
)

const root = "../../"

func TestGeneratedFilesAreCurrent(t *testing.T) {
	for _, c := range contracts {
		got, err := generate(root, c)
		if err != nil {
			t.Fatal(err)
		}
		want, err := os.ReadFile(root + c.file)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("%s is out of date with %s; run: go run ./tools/wiregen", c.file, c.header)
		}
	}
}

func TestRefusesWhatItDoesNotUnderstand(t *testing.T) {
	for name, src := range map[string]string{
		"implicit padding":       "struct xsw_a {\n uint32_t x;\n uint64_t y;\n};\n",
		"implicit padding at":    "struct xsw_a {\n uint64_t y;\n uint32_t x;\n};\n",
		"not a field":            "struct xsw_a {\n size_t x;\n};\n",
		"not an enum member":     "enum xsw_a {\n XSW_A,\n};\n",
		"not understood":         "typedef int foo;\n",
		"is not declared before": "struct xsw_a {\n struct xsw_b b;\n};\n",
		"array length":           "struct xsw_a {\n char b[NOPE];\n};\n",
		"unclosed block":         "struct xsw_a {\n",
	} {
		if _, err := parse(src, nil); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: got %v", name, err)
		}
	}
}
