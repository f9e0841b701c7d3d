// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"
)

func TestGenerate(t *testing.T) {
	got, err := generate()
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{"  pid: number;\n", "  priority_reason?: string;\n", "  processes: Process[] | null;\n", "export const priorityMax = 255;\n"} {
		if !strings.Contains(got, line) {
			t.Errorf("no line %q", line)
		}
	}
}

func TestUnknownTypeIsRefused(t *testing.T) {
	if kind, err := typeOf(schema{Type: "null"}); err == nil {
		t.Errorf("null became %q", kind)
	}
}
