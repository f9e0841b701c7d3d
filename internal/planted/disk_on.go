// SPDX-License-Identifier: Apache-2.0

//go:build planted_disk

package planted

// Disk is on in this build.
const Disk = true
