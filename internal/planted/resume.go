// SPDX-License-Identifier: Apache-2.0

//go:build !planted_resume

package planted

// Resume: a channel that is stopped again harder is not resumed first, so one resume no longer suffices.
const Resume = false
