// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"xsched/internal/model"
	"xsched/internal/wire"
)

// verifying is a session that verifies the GPUs of its driver, or not.
type verifying struct {
	fakeSession
	yes bool
}

func (v *verifying) Verifies(model.DeviceID) bool { return v.yes }

// A claim to a GPU is believed only as far as drivers and the host confirm it. The virtual GPUs are as
// strict as the hardware: a PCI address that they do not list does not exist.
func TestClaims(t *testing.T) {
	gpus := []model.DeviceID{model.MakeDeviceID(0, 1, 0, 0), model.MakeDeviceID(0, 2, 0, 0)}
	other, invented := model.MakeDeviceID(0, 3, 0, 0), model.MakeDeviceID(0, 99, 0, 0)
	noPCI := model.MakeDeviceID(wire.NoPCIDomain, 0, 0, 1)
	bus := t.TempDir()
	for _, gpu := range append(gpus, other) {
		if err := os.MkdirAll(filepath.Join(bus, "sys/bus/pci/devices", gpu.String()), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	lists, none := &fakeDriver{gpus: gpus}, &fakeDriver{absent: os.ErrNotExist}
	for name, test := range map[string]struct {
		place                          Place
		driver                         *fakeDriver
		verifies                       bool
		listed, other, invented, noPCI Claim
	}{
		"verified":         {Place{Root: bus}, lists, true, ClaimVerified, ClaimUnlisted, ClaimAbsent, ClaimUnlisted},
		"not verified":     {Place{Root: bus}, lists, false, ClaimTrusted, ClaimUnlisted, ClaimAbsent, ClaimUnlisted},
		"virtual":          {Place{Virtual: true}, lists, true, ClaimVerified, ClaimAbsent, ClaimAbsent, ClaimUnlisted},
		"bus unknown":      {Place{Root: t.TempDir()}, lists, true, ClaimVerified, ClaimUnlisted, ClaimUnlisted, ClaimUnlisted},
		"without a driver": {Place{Root: bus}, none, true, ClaimUnlisted, ClaimUnlisted, ClaimUnlisted, ClaimUnlisted},
	} {
		t.Run(name, func(t *testing.T) {
			set := OpenAll([]Driver{test.driver}, Options{Place: test.place}, test.driver.Name())
			session := set.NewSession(SessionOptions{}).(*combined)
			for i := range session.parts {
				session.parts[i].Session = &verifying{yes: test.verifies}
			}
			for gpu, want := range map[model.DeviceID]Claim{gpus[0]: test.listed, gpus[1]: test.listed, other: test.other, invented: test.invented, noPCI: test.noPCI} {
				if got := session.Claim(gpu); got != want {
					t.Errorf("%v: claim %d, want %d", gpu, got, want)
				}
			}
		})
	}
}

// A GPU that appears after a process joined is known to its next probe.
func TestClaimOfALateGPU(t *testing.T) {
	d := &fakeDriver{}
	set := OpenAll([]Driver{d}, Options{Place: Place{Virtual: true}}, d.Name())
	session := set.NewSession(SessionOptions{})
	gpu := model.MakeDeviceID(0, 1, 0, 0)
	if got := session.(Claimer).Claim(gpu); got != ClaimAbsent {
		t.Errorf("claim %d", got)
	}
	set.present[0].instance.(*fakeInstance).gpus = []model.DeviceID{gpu}
	set.lister.last = nil // as old as it may be
	if _, err := session.Resolve(context.Background()); err != nil {
		t.Fatal(err)
	}
	if got := session.(Claimer).Claim(gpu); got != ClaimTrusted {
		t.Errorf("claim %d", got)
	}
}
