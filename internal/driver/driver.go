// SPDX-License-Identifier: Apache-2.0

// Package driver is what can be done to a process's work on a GPU: stop it,
// let it go on, give it a hardware timeslice. Backends implement Target; a
// Worker drives one target towards the newest state the engine wants.
package driver

import (
	"context"

	"xsched/internal/model"
)

// Target is one process on one device.
type Target interface {
	// Apply makes want true. It blocks as long as the device does, and does
	// nothing that is known to be true already.
	Apply(ctx context.Context, want model.Desired) error
	// Invalidate forgets what is known to be true: somebody else (the client,
	// recovering) changed it. The next Apply does everything again.
	Invalidate()
	// Close lets go of the target without changing it.
	Close() error
}

// Capability is what a device really does for one process.
type Capability struct {
	MaxLevel model.Level
	Slices   bool
	// Reason says why MaxLevel is not the highest; empty when it is.
	Reason string
	// Route names the way to levels 2 and 3 where there are several; empty: the driver's channels.
	Route string
	// Bare: there may be work that no hook sees, so that queues alone show that the GPU is used.
	Bare bool
}

// Resolve picks the level in force for a wanted one: the best for LevelAuto. A
// level above what is there falls to the best that is, and the reason says so.
func (c Capability) Resolve(want model.Level) (model.Level, string) {
	switch {
	case want == model.LevelAuto:
		return c.MaxLevel, c.Reason
	case want > c.MaxLevel:
		return c.MaxLevel, want.String() + " was asked for: " + c.Reason
	}
	return want, ""
}
