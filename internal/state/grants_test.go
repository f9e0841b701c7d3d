// SPDX-License-Identifier: Apache-2.0

package state

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

// TestGrants: grants have a file of their own. A release without them, or with other fields in them, loses
// no setting.
func TestGrants(t *testing.T) {
	path := filepath.Join(t.TempDir(), FileName)
	if err := Save(path, sample()); err != nil {
		t.Fatal(err)
	}
	file := GrantsFile(path)
	if g, err := LoadGrants(file); err != nil || g.Sources != nil {
		t.Errorf("no file: %+v, %v", g, err)
	}
	want := Grants{Version: Version, Sources: map[string]json.RawMessage{"dra": json.RawMessage(`[]`)}}
	if err := SaveGrants(file, want); err != nil {
		t.Fatal(err)
	}
	if g, err := LoadGrants(file); err != nil || !reflect.DeepEqual(g, want) {
		t.Errorf("%+v, %v", g, err)
	}
	if d, err := Load(path); err != nil || !reflect.DeepEqual(d, sample()) {
		t.Errorf("settings beside grants: %+v, %v", d, err)
	}
	if text, err := os.ReadFile(path); err != nil || strings.Contains(string(text), "grants") {
		t.Errorf("an older release refuses %s, %v", text, err)
	}
	if err := os.WriteFile(file, []byte(`{"version":1,"newer":2,"sources":{"dra":[{"id":"a","newer":3}]}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if g, err := LoadGrants(file); err != nil || len(g.Sources) != 1 {
		t.Errorf("of a newer release: %+v, %v", g, err)
	}
	for _, bad := range []string{``, `[]`, `{"version":2}`, "\x00"} {
		if err := os.WriteFile(file, []byte(bad), 0o600); err != nil {
			t.Fatal(err)
		}
		if g, err := LoadGrants(file); err == nil || !strings.Contains(err.Error(), file+".bad") || g.Sources != nil {
			t.Errorf("%q: %+v, %v", bad, g, err)
		}
	}
}
