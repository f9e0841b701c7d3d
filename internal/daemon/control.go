// SPDX-License-Identifier: Apache-2.0

package daemon

import "xsched/internal/control"

// service is the control interface without Parts. Each request goes to the part that owns its state.
type service struct {
	*chronicle // History, Journal
	*holds     // Holds
}

var _ control.Control = (*Daemon)(nil)

// newService makes the parts that serve requests. assemble gives them the loop and the server.
func (d *Daemon) newService() service {
	users := &userNames{}
	return service{
		chronicle: &chronicle{log: d.log, access: &d.access, terms: &d.terms, users: users},
		holds:     newHolds(d.log, &d.access),
	}
}
