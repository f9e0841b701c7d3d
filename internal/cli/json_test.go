// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"encoding/json"
	"strings"
	"testing"
)

// TestJSONHasNoControlCharacters: foreign text in JSON can't steer a terminal, and keeps its value.
func TestJSONHasNoControlCharacters(t *testing.T) {
	in := map[string]string{"command": "a\u0085b\u009b31m\u202e\u2066\u200f\u007fc\U000e0001é日"}
	var out strings.Builder
	a := &app{stdout: &out}
	if err := a.printJSON(in); err != nil {
		t.Fatal(err)
	}
	if err := a.oneJSON(in, true); err != nil {
		t.Fatal(err)
	}
	for _, r := range "\u0085\u009b\u202e\u2066\u200f\u007f\U000e0001" {
		if strings.ContainsRune(out.String(), r) {
			t.Errorf("%U is printed: %q", r, out.String())
		}
	}
	if !strings.Contains(out.String(), "é日") {
		t.Errorf("letters are escaped: %s", out.String())
	}
	var got map[string]string
	if err := json.NewDecoder(strings.NewReader(out.String())).Decode(&got); err != nil || got["command"] != in["command"] {
		t.Errorf("%q, %v", got["command"], err)
	}
}
