// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"xsched/internal/model"
	"xsched/internal/policy"
)

const root = "../.."

// TestPicturesAreCurrent checks that the committed pictures equal the generator's output,
// and that they are self-contained SVG with a dark variant.
func TestPicturesAreCurrent(t *testing.T) {
	all, err := pictures(root)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range all {
		got, err := os.ReadFile(filepath.Join(root, name))
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s is stale (%v); run `make pictures`", name, err)
		}
		if !strings.HasSuffix(name, ".svg") {
			continue
		}
		for d := xml.NewDecoder(bytes.NewReader(want)); ; {
			if _, err := d.Token(); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
		}
		if !strings.Contains(name, "policies/") {
			continue
		}
		for _, part := range []string{"prefers-color-scheme: dark", "on the GPU", " ms</text>", "aria-label", `class="c0"`} {
			if !bytes.Contains(want, []byte(part)) {
				t.Errorf("%s has no %q", name, part)
			}
		}
	}
}

// TestHintsOfPolicies compares the first table of each policy's page with the tags of the hints, from
// which `xsched hint` knows that a hint has no effect.
func TestHintsOfPolicies(t *testing.T) {
	for _, name := range policy.Names() {
		page, err := os.ReadFile(filepath.Join(root, "docs/policies", strings.ToLower(name)+".md"))
		if err != nil {
			t.Fatal(err)
		}
		_, table, _ := strings.Cut(string(page), "|---|---|---|---|\n")
		row, _, _ := strings.Cut(table, "\n")
		for _, f := range model.HintFields() {
			if len(f.Policies) == 0 || strings.HasSuffix(f.Name, "_priority") { // "its two priorities"
				continue
			}
			if got, want := strings.Contains(row, "`"+f.Name+"`"), slices.Contains(f.Policies, name); got != want {
				t.Errorf("%s: the page says %v about hint %s, its tag %v", name, got, f.Name, want)
			}
		}
	}
}

// TestPages checks that every policy has a page with its name, its use and its hints.
// A scene and its picture are optional, but exist only together.
func TestPages(t *testing.T) {
	for _, name := range policy.Names() {
		lower := strings.ToLower(name)
		page, err := os.ReadFile(filepath.Join(root, "docs/policies", lower+".md"))
		if err != nil {
			t.Fatal(err)
		}
		parts := []string{"# " + name + ": ", "\n**When to use it.** ", "\n## Hints\n"}
		if _, err := os.Stat(filepath.Join(root, "docs/policies/scenes", lower+".yaml")); err == nil {
			parts = append(parts, "]("+lower+"_gen.svg)", "](scenes/"+lower+".yaml)")
		}
		for _, part := range parts {
			if !strings.Contains(string(page), part) {
				t.Errorf("%s.md has no %q", lower, part)
			}
		}
	}
}
