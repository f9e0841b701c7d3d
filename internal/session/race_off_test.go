// SPDX-License-Identifier: Apache-2.0

//go:build !race

package session_test

const raceEnabled = false
