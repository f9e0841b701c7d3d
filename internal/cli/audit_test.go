// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The service sees the file system read-only, except for the folders that its unit names.
func TestServiceCanWriteTheAuditLog(t *testing.T) {
	text, err := os.ReadFile("../../deploy/systemd/xsched.service")
	if err != nil {
		t.Fatal(err)
	}
	folder, err := filepath.Rel("/var/log", filepath.Dir(auditDefault))
	if err != nil || !strings.Contains(string(text), "\nLogsDirectory="+folder+"\n") {
		t.Errorf("xsched.service has no LogsDirectory=%s (%v)", folder, err)
	}
}
