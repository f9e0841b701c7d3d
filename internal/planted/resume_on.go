// SPDX-License-Identifier: Apache-2.0

//go:build planted_resume

package planted

// Resume is on in this build.
const Resume = true
