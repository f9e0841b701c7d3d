// SPDX-License-Identifier: Apache-2.0

//go:build race

package loop_test

const raceEnabled = true
