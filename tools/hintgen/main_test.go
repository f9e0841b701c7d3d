// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"xsched/internal/model"
)

func TestGeneratedIsCurrent(t *testing.T) {
	for name, want := range files() {
		got, err := os.ReadFile(filepath.Join("../..", name))
		if err != nil {
			t.Fatal(err)
		}
		if string(got) != want {
			t.Errorf("%s is stale; run `make generate`", name)
		}
	}
}

// TestDocumented: the page for programmers has every hint, in every way to say it.
func TestDocumented(t *testing.T) {
	text, err := os.ReadFile("../../docs/programming.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range model.HintFields() {
		for _, name := range []string{f.Name, "`--" + f.Flag + "`", f.Env} {
			if !strings.Contains(string(text), name) {
				t.Errorf("docs/programming.md does not say %s", name)
			}
		}
	}
}
