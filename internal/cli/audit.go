// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"os"
	"path/filepath"

	"xsched/internal/control"
	"xsched/internal/daemon"
)

// Values of `serve --audit`, and its default file. Only root's daemon in its own folder has one by
// default: it serves several users, and there is one at most. A user's daemon has one user, who made
// all changes, and daemons of tests and demos shall leave nothing behind.
const (
	auditAuto    = "auto"
	auditOff     = "off"
	auditDefault = "/var/log/xsched/audit.log"
)

// setAudit chooses the audit log.
func setAudit(o *daemon.Options, flag string) {
	switch flag {
	case auditOff:
	case auditAuto:
		if os.Geteuid() == 0 && !o.Virtual && o.Dir == control.DefaultDir(0, func(string) string { return "" }) {
			o.Audit, o.AuditOptional = auditDefault, true
			_ = os.MkdirAll(filepath.Dir(auditDefault), 0o700) // the daemon reports the failure
		}
	default:
		o.Audit = flag
	}
}
