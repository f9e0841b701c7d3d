// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The token is read from a file that only its owner can read, and the shown address has no secret.
func TestAlertOptions(t *testing.T) {
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte("0123456789abcdef\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	o := alertOptions{command: "/etc/xsched/alert", url: "https://chat.example.com/hook/SECRET?key=SECRET", tokenFile: file}
	r, err := o.receivers()
	if err != nil || r.Token != "0123456789abcdef" || r.URL != o.url || r.Command != o.command {
		t.Errorf("%+v, %v", r, err)
	}
	shown := o.shownURL()
	if !strings.HasPrefix(shown, "https://chat.example.com/name-") || strings.Contains(shown, "SECRET") {
		t.Error(shown)
	}
	other := alertOptions{url: o.url + "2"}
	if other.shownURL() == shown || (&alertOptions{}).shownURL() != "" {
		t.Error("an address that changes looks the same, or none looks like one")
	}
	for _, bad := range []string{"SECRET", "//SECRET@h/x", "%SECRET"} {
		if shown := (&alertOptions{url: bad}).shownURL(); strings.Contains(shown, "SECRET") {
			t.Errorf("%q is shown as %q", bad, shown)
		}
	}
	if err := os.Chmod(file, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := o.receivers(); err == nil || !strings.Contains(err.Error(), "chmod 600") {
		t.Errorf("%v", err)
	}
}
