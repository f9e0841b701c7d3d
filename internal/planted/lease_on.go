// SPDX-License-Identifier: Apache-2.0

//go:build planted_lease

package planted

// Lease is on in this build.
const Lease = true
