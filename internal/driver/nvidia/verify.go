// SPDX-License-Identifier: Apache-2.0

package nvidia

import "xsched/internal/model"

// Verifies implements driver.Verifier. A GPU that Resolve reports has a subdevice object which the
// daemon has found on the descriptor that the process handed over. A client of MPS may have none: its
// channels belong to the server. A service of another user exempts nobody: a process can choose its name.
func (s *session) Verifies(model.DeviceID) bool {
	return s.driver.untouchable() == "" && !s.driver.mps.owns()
}
