// SPDX-License-Identifier: Apache-2.0

// Package version identifies the build. All binaries of one build have the same version.
package version

// The linker sets Release and Commit (see the Makefile).
var (
	Release = "development" // MAJOR.MINOR.PATCH of shim/include/xsched/version.h
	Commit  = ""
)

// String returns the release with the commit as semantic versioning's build metadata.
func String() string {
	if Commit == "" {
		return Release
	}
	return Release + "+" + Commit
}
