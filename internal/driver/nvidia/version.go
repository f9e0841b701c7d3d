// SPDX-License-Identifier: Apache-2.0

package nvidia

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Grade ranks the evidence for a driver release.
type Grade int

// Firmware decides how disabled channels behave, and no header shows it. Every release that was not
// measured therefore needs a self-test.
const (
	Unsupported Grade = iota // different ABI: never called
	Unlisted                 // newer than the table: called only by an explicit self-test
	SameABI                  // known ABI; levels 2 and 3 need a passed self-test
	Measured                 // demonstrated; a failed self-test withdraws levels 2 and 3
)

func (g Grade) String() string {
	return [...]string{"unsupported", "unlisted", "same ABI, must pass the self-test", "measured"}[g]
}

// branches lists the driver branches with the ABI of package abi. To add one, write its data file
// with tools/rmlayout and run the parity test.
var branches = []int{535, 545, 550, 555, 560, 565, 570, 575, 580, 590, 595}

// measured maps demonstrated releases to the hardware they ran on.
var measured = map[string]string{"580.159.04": "H200, open kernel module"}

// virtualVersion is the virtual GPU's release, which behaves like the measured one.
const virtualVersion = "virtual"

// ErrUnknownDriver marks a driver missing from the table.
var ErrUnknownDriver = errors.New("not in the table of known drivers")

// grade looks up a driver version such as 580.159.04.
func grade(version string) (Grade, error) {
	if _, ok := measured[version]; ok || version == virtualVersion {
		return Measured, nil
	}
	major, _, _ := strings.Cut(version, ".")
	n, err := strconv.Atoi(major)
	if err != nil {
		return Unsupported, fmt.Errorf("malformed driver version %q", version)
	}
	if slices.Contains(branches, n) {
		return SameABI, nil
	}
	if n > branches[0] {
		return Unlisted, fmt.Errorf("driver %s: %w (%s); level 1 only, until `xsched doctor --self-test` passes", version, ErrUnknownDriver, knownRange())
	}
	return Unsupported, fmt.Errorf("driver %s: %w (%s), and its interface differs; level 1 only", version, ErrUnknownDriver, knownRange())
}

// knownRange names the first and the last branch.
func knownRange() string { return fmt.Sprintf("R%d to R%d", branches[0], branches[len(branches)-1]) }

var reVersion = regexp.MustCompile(`\b(\d{3,4})\.(\d+)(?:\.\d+)*\b`)

// DriverVersion reads the version of the loaded kernel module.
func (s System) DriverVersion() (string, error) {
	if b, err := os.ReadFile(s.path("sys/module/nvidia/version")); err == nil {
		if v := reVersion.FindString(string(b)); v != "" {
			return v, nil
		}
	}
	b, err := os.ReadFile(s.path("proc/driver/nvidia/version"))
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
