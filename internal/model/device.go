// SPDX-License-Identifier: Apache-2.0

package model

import "fmt"

// ParseDeviceID reads an address as DeviceID.String writes it.
func ParseDeviceID(name string) (DeviceID, error) {
	var domain, bus, slot, function uint32
	if _, err := fmt.Sscanf(name, "%x:%x:%x.%d", &domain, &bus, &slot, &function); err != nil {
		return 0, fmt.Errorf("read PCI address %q: %w", name, err)
	}
	return MakeDeviceID(domain, bus, slot, function), nil
}
