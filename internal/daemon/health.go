// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"time"

	"xsched/internal/clock"
	"xsched/internal/health"
	"xsched/internal/keeper"
	"xsched/internal/logging"
)

// A part counts as dead after these times without a beat. A restart should need more than one late
// beat, so each is ten periods or more, and above every limit that the part itself waits with.
const (
	loopLimit     = time.Second          // programs resume themselves after a tenth of it
	observerLimit = 10 * time.Second     // its period is 50 ms, and each request to the loop waits
	holdsLimit    = 10 * time.Second     // it waits answerTime for the loop
	historyLimit  = 10 * time.Second     // its period is 100 ms
	scanLimit     = 60 * time.Second     // its longest period is 20 s
	settingsLimit = 10 * keeper.SaveTime // a request of an operator waits keeper.SaveTime
	usageLimit    = 60 * time.Second     // a slow disk writes the usage of 97 days
	folderLimit   = 10 * time.Second     // its period is 500 ms
	pollsLimit    = 10 * time.Second     // a poll asks for a state that the driver has
	logLimit      = 5 * time.Second      // the queue of lines is full long before
	driverLimit   = 5 * time.Minute      // a self-test may wait twice for testTime, and scans
	sensorsLimit  = 10 * time.Second     // it keeps values, and asks a driver for its GPUs
	alertsLimit   = 60 * time.Second     // an alert may take 10 s
	guardianLimit = 10 * time.Second     // it may wait for two answers and start a process
)

// Names of parts that have a remedy of their own.
const (
	guardianPart = "guardian process"
	driverPart   = "driver watch"
	probesPart   = "driver probes"
	pollsPart    = "polls of attached programs"
	releasePart  = "release of programs' GPUs"
	sensorsPart  = "GPU sensors"
	alertsPart   = "alerts"
)

// hungDriver is the remedy of what waits in the kernel.
const hungDriver = "the driver does not answer: see the kernel's log; a reset of the GPU or a reboot may be needed"

// remedies are those of parts that no restart of the daemon helps.
func remedies() map[string]string {
	return map[string]string{
		guardianPart: "restart it: `systemctl restart xsched-guardian`; meanwhile the daemon starts a guardian of its own",
		driverPart:   hungDriver, probesPart: hungDriver, pollsPart: hungDriver, releasePart: hungDriver, sensorsPart: hungDriver,
		alertsPart: "the alert command hangs in the kernel: see what it waits for; no alert is sent meanwhile",
	}
}

// parts are those of the daemon's own goroutines.
type parts struct{ scan, observer, holds, history, settings, usage, folder *health.Part }

// addParts adds the parts of the daemon. A restart helps neither a disk nor the reader of the log.
func (d *Daemon) addParts() parts {
	d.health.Watch("engine loop", loopLimit, true, func() time.Duration {
		return clock.Now().Sub(d.loop.Stats().Heartbeat)
	})
	if l, ok := d.log.Handler().(*logging.Log); ok {
		d.health.Watch("log", logLimit, false, l.Writing)
	}
	return parts{
		scan: d.health.Add("scan for unmanaged programs", scanLimit, true), observer: d.health.Add("observer of programs without hooks", observerLimit, true),
		holds: d.health.Add("holds", holdsLimit, true), history: d.health.Add("history", historyLimit, true),
		settings: d.health.Add("settings file", settingsLimit, false), usage: d.health.Add("usage file", usageLimit, false), folder: d.health.Add("runtime folder", folderLimit, false),
	}
}
