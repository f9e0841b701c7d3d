// SPDX-License-Identifier: Apache-2.0

//go:build !planted_lease

package planted

// Lease: a worker does not notice that its lease has ended and that the program resumed itself.
const Lease = false
