// SPDX-License-Identifier: Apache-2.0

// Package registry lists the drivers. Adding a driver takes one folder and one line here.
package registry

import (
	"xsched/internal/driver"
	"xsched/internal/driver/amd"
	"xsched/internal/driver/nvidia"
)

// All returns every driver in detection order.
func All() []driver.Driver {
	return []driver.Driver{
		nvidia.New(),
		amd.New(),
	}
}
