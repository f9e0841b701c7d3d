// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"time"

	"xsched/internal/control"
	"xsched/internal/guardian"
	"xsched/internal/model"
)

// service is the control interface. Each request goes to the part that owns its state.
type service struct {
	*views     // Version, List, Devices, Stats, Parts
	*settings  // Policy, Mode, Config, Reload, Wedge
	*processes // Hint, Suspend, Resume, Attach, Detach
	*queries   // Queues
	*granting  // Grants
	*holds     // Holds
	*chronicle // History, Journal
	*usage     // Report
	*alerts    // AlertTest
}

var _ control.Control = (*Daemon)(nil)

// newService makes the parts that serve requests. The access gets the loop and the server later.
func (d *Daemon) newService(past *chronicle, recovery *guardian.Recovery) service {
	past.faults.guardian = d.guardian
	v := &views{
		opts: &d.opts, log: d.log, started: time.Now(), access: d.access, terms: d.terms, drivers: d.drivers, metrics: d.metrics,
		guardian: d.guardian, health: d.health, threads: &past.threads, users: past.users, unmanaged: d.unmanaged, machine: d.machine, keeper: d.keeper, sensors: d.sensors, alerts: past.alerts,
	}
	return service{
		views: v,
		settings: &settings{
			opts: &d.opts, log: d.log, access: d.access, terms: d.terms, keeper: d.keeper, drivers: d.drivers, views: v, journal: past,
		},
		processes: &processes{access: d.access, terms: d.terms, keeper: d.keeper, drivers: d.drivers, attacher: &attacher{
			log: d.log, access: d.access, keeper: d.keeper, drivers: d.drivers, guardian: d.guardian, recovery: recovery,
			unmanaged: d.unmanaged, observer: d.observer, claimed: map[int]struct{}{},
		}},
		queries:   &queries{access: d.access, open: map[model.SessionID]*question{}},
		granting:  &granting{log: d.log, access: d.access, terms: d.terms, keeper: d.keeper},
		holds:     newHolds(d.log, d.access),
		chronicle: past,
		usage:     past.usage,
		alerts:    past.alerts,
	}
}
