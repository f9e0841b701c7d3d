// SPDX-License-Identifier: Apache-2.0

package loop_test

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"xsched/internal/driver"
	"xsched/internal/identity"
	"xsched/internal/loop"
	"xsched/internal/model"
	"xsched/internal/session/sessiontest"
)

// A process that was idle when it was detached is idle when it is attached again. Only its first attach
// gives it a probing turn.
func TestEstimateOutlivesDetach(t *testing.T) {
	h := sessiontest.Start(t, sessiontest.Separate)
	caps := map[model.DeviceID]driver.Capability{sessiontest.GPU: {MaxLevel: model.LevelInterrupt}}
	program := identity.ProgramOf(os.Getpid())
	for i := range 3 {
		pidfd, err := unix.PidfdOpen(os.Getpid(), 0)
		if err != nil {
			t.Fatal(err)
		}
		who := loop.Identity{PID: os.Getpid(), ClientPID: os.Getpid(), User: identity.OnHost(os.Getuid()), Program: &program}
		s, err := h.Attach(t.Context(), who, model.HintChange{}, sessiontest.Attached{Hardware: &sessiontest.Hardware{Caps: caps}, Ended: func(bool) {}}, pidfd)
		if err != nil {
			t.Fatal(err)
		}
		if queues := h.Only(t).Queues; len(queues) != 1 || queues[0].Busy != (i == 0) {
			t.Errorf("attach %d: the queues are %+v", i, queues)
		}
		if _, err := h.Detach(t.Context(), s.PID); err != nil {
			t.Fatal(err)
		}
	}
}
