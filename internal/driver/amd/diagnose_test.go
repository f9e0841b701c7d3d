// SPDX-License-Identifier: Apache-2.0

package amd_test

import (
	"testing"

	"xsched/internal/driver"
	"xsched/internal/driver/amd"
	"xsched/internal/model"
	vamd "xsched/internal/virtual/amd"
	"xsched/internal/virtual/amd/kfdtest"
)

// TestDiagnoseDevice asks the virtual device instead of a preset answer.
func TestDiagnoseDevice(t *testing.T) {
	for _, c := range []struct {
		minor  uint32
		level  model.Level
		status driver.Status
		detail string
	}{
		{17, model.LevelInterrupt, driver.OK, "1.17"},
		{11, model.LevelDeactivate, driver.Limited, "1.11 has no debugger requests, which came with 1.13: `xsched attach` does not work"},
	} {
		config := vamd.DefaultConfig()
		config.Minor = c.minor
		device := kfdtest.Serve(t, config)
		d := amd.New().Diagnose(driver.Host{
			Root: device.Root, Getenv: func(string) string { return "" }, Open: func(string) error { return nil },
			Ask: func(_ string, request uint32, arg []byte) error {
				transport, err := amd.DialVirtual(device.Socket)
				if err != nil {
					return err
				}
				defer transport.Close()
				_, err = transport.Ioctl(amd.Request{Code: request, Arg: arg, File: -1})
				return err
			},
		})
		if !d.Loaded || len(d.GPUs) != 2 || d.Level != c.level {
			t.Errorf("1.%d: %+v", c.minor, d)
		}
		found := false
		for _, check := range d.Checks {
			if check.Name == "KFD interface" {
				found = check.Status == c.status && check.Detail == c.detail
			}
		}
		if !found {
			t.Errorf("1.%d: %+v", c.minor, d.Checks)
		}
	}
}
