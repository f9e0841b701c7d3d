// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"xsched/internal/policy"
)

const root = "../.."

// TestPicturesAreCurrent: what is in the repository is what the simulator draws today, and it is SVG
// that stands alone and knows dark pages.
func TestPicturesAreCurrent(t *testing.T) {
	all, err := pictures(root)
	if err != nil {
		t.Fatal(err)
	}
	if len(all) != len(policy.Names())+3 { // the page and the chart of the example, and the result
		t.Errorf("%d pictures for %d policies", len(all), len(policy.Names()))
	}
	for name, want := range all {
		got, err := os.ReadFile(filepath.Join(root, name))
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s is old (%v); run `make pictures`", name, err)
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

// TestPages: every policy has a page that says what it is, when to use it, which hints it reads, and shows it;
// and a line in the overview.
func TestPages(t *testing.T) {
	overview, err := os.ReadFile(filepath.Join(root, "docs/policies/README.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range policy.Names() {
		lower := strings.ToLower(name)
		page, err := os.ReadFile(filepath.Join(root, "docs/policies", lower+".md"))
		if err != nil {
			t.Fatal(err)
		}
		for _, part := range []string{"# " + name + ": ", "\n**When to use it.** ", "\n## Hints\n", "](" + lower + "_gen.svg)", "](scenes/" + lower + ".yaml)"} {
			if !strings.Contains(string(page), part) {
				t.Errorf("%s.md has no %q", lower, part)
			}
		}
		if !strings.Contains(string(overview), fmt.Sprintf("| %d | [%s](%s.md) |", policy.Number(name), name, lower)) {
			t.Errorf("the overview does not list %s as %d", name, policy.Number(name))
		}
	}
}
