// SPDX-License-Identifier: Apache-2.0

package loop

import (
	"log/slog"
	"time"
)

// logProtection reports the processes whose protection was dropped or resumed. The log limits its rate.
func (l *Loop) logProtection() {
	for _, p := range l.engine.Protected() {
		figures := slog.Group("protection", "pid", p.PID, "device", p.Device.String(), "p99", p.P99.Round(time.Microsecond),
			"native_p99", p.NativeP99.Round(time.Microsecond), "source", string(p.Source), "costs_others", p.CostShare)
		if p.Native {
			l.log.Info("protection dropped: not worth its cost, the process shares the GPU natively", figures)
		} else {
			l.log.Info("protection resumed, on trial", figures)
		}
		for _, c := range l.registry.byPID[p.PID] {
			c.touch()
		}
	}
}
