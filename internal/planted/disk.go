// SPDX-License-Identifier: Apache-2.0

//go:build !planted_disk

package planted

// Disk: the audit log is never written again after one write failed.
const Disk = false
