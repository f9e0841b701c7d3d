// SPDX-License-Identifier: Apache-2.0

package nvidia

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
)

// generation is one line of the table of drivers.
type generation struct {
	major    int    // of the version
	measured string // on what it was shown to work
}

// generations is every driver whose layout is known. One that was not measured is
// not here: a wrong guess would reach the GPU's firmware. A new one is one line, after
// its ctrl2080fifo.h was compared and the GPU tests were run on it.
var generations = []generation{
	{580, "580.159.04, open kernel module, H200"},
}

var reVersion = regexp.MustCompile(`\b(\d{3,4})\.(\d+)(?:\.\d+)*\b`)

// ErrUnknownDriver is a driver that is not in the table.
var ErrUnknownDriver = errors.New("its layout is not known")

// find looks a driver version like 580.159.04 up.
func find(version string) (*generation, error) {
	major, _, _ := strings.Cut(version, ".")
	n, err := strconv.Atoi(major)
	if err != nil {
		return nil, fmt.Errorf("driver version %q is not a version", version)
	}
	for i := range generations {
		if generations[i].major == n {
			return &generations[i], nil
		}
	}
	return nil, fmt.Errorf("driver %s: %w (known: %s), so only level 1 is used", version, ErrUnknownDriver, strings.Join(KnownDrivers(), ", "))
}

// KnownDrivers lists the driver generations whose layout is known.
func KnownDrivers() []string {
	var names []string
	for _, g := range generations {
		names = append(names, fmt.Sprintf("%d.x", g.major))
	}
	return names
}

// Measured says on what the driver of a version was shown to work.
func Measured(version string) (string, error) {
	g, err := find(version)
	if err != nil {
		return "", err
	}
	return g.measured, nil
}

// DriverVersion asks the loaded kernel module.
func DriverVersion() (string, error) { return System{Root: "/"}.DriverVersion() }

// DriverVersion asks the loaded kernel module of this machine.
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
