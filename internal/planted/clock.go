// SPDX-License-Identifier: Apache-2.0

//go:build !planted_clock

package planted

// Clock: the daemon's clock follows the wall clock instead of the monotonic one.
const Clock = false
