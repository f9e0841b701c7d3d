// SPDX-License-Identifier: Apache-2.0

package daemon

// StopLoop ends the engine loop, as a failed wait does.
func (d *Daemon) StopLoop() { d.loop.Stop() }
