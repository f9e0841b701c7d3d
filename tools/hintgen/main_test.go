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
	all, err := files()
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range all {
		got, err := os.ReadFile(filepath.Join("../..", name))
		if err != nil {
			t.Fatal(err)
		}
		if string(got) != want {
			t.Errorf("%s is stale; run `make generate`", name)
		}
	}
}

// TestDocumented checks that docs/programming.md has every form of every hint.
func TestDocumented(t *testing.T) {
	text, err := os.ReadFile("../../docs/programming.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range model.HintFields() {
		for _, name := range []string{f.Name, "`--" + f.Flag + "`", f.Env} {
			if !strings.Contains(string(text), name) {
				t.Errorf("docs/programming.md lacks %s", name)
			}
		}
	}
}
