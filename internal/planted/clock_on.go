// SPDX-License-Identifier: Apache-2.0

//go:build planted_clock

package planted

// Clock is on in this build.
const Clock = true
