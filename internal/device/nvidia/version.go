// SPDX-License-Identifier: Apache-2.0

package nvidia

import (
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
)

// layout is where a driver generation keeps the fields of the structs that
// are not the same for ever.
type layout struct {
	name string

	// NV2080_CTRL_FIFO_DISABLE_CHANNELS_PARAMS, from ctrl2080fifo.h
	disableBytes      int
	disableMax        int
	offDisable        int // bDisable, u8
	offNumChannels    int // numChannels, u32
	offOnlyScheduling int // bOnlyDisableScheduling, u8; bRewindGpPut follows
	offClients        int // hClientList
	offChannels       int // hChannelList
}

// r580 was measured on 580.159.04 (open kernel module, H200).
var r580 = layout{
	name: "580", disableBytes: 536, disableMax: NV2080_CTRL_FIFO_DISABLE_CHANNELS_MAX_ENTRIES,
	offDisable: 0, offNumChannels: 4, offOnlyScheduling: 8, offClients: 24, offChannels: 280,
}

// layouts by the driver's major version. A generation that was not measured
// is not here: a wrong guess would reach the GPU's firmware.
var layouts = map[int]*layout{580: &r580}

var reVersion = regexp.MustCompile(`\b(\d{3,4})\.(\d+)(?:\.\d+)*\b`)

// layoutFor finds the layout of a driver version like 580.159.04.
func layoutFor(version string) (*layout, error) {
	major, _, _ := strings.Cut(version, ".")
	n, err := strconv.Atoi(major)
	if err != nil {
		return nil, fmt.Errorf("driver version %q is not a version", version)
	}
	l, ok := layouts[n]
	if !ok {
		return nil, fmt.Errorf("driver %s is not one that was measured (580): only level 1", version)
	}
	return l, nil
}

// DriverVersion asks the loaded kernel module.
func DriverVersion() (string, error) { return driverVersion("/") }

func driverVersion(root string) (string, error) {
	if b, err := os.ReadFile(root + "sys/module/nvidia/version"); err == nil {
		if v := reVersion.FindString(string(b)); v != "" {
			return v, nil
		}
	}
	b, err := os.ReadFile(root + "proc/driver/nvidia/version")
	if err != nil {
		return "", fmt.Errorf("no NVIDIA kernel module is loaded: %w", err)
	}
	// "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build ..."
	line, _, _ := strings.Cut(string(b), "\n")
	if v := reVersion.FindString(line); v != "" {
		return v, nil
	}
	return "", fmt.Errorf("no version in %q", line)
}
