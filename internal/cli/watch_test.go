// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"strings"
	"testing"
	"time"
)

// TestReplaceScreen checks that a long picture never scrolls the terminal.
func TestReplaceScreen(t *testing.T) {
	if got := replaceScreen("a\nb\n", 24); got != "\x1b[Ha\x1b[K\r\nb\x1b[K\r\n\x1b[J" {
		t.Errorf("%q", got)
	}
	for _, height := range []int{3, 10, 24} {
		got := replaceScreen(strings.Repeat("x\n", 100), height)
		if n := strings.Count(got, "\n"); n != height-1 {
			t.Errorf("%d line breaks on %d lines", n, height)
		}
		if height == 10 && !strings.Contains(got, "92 more lines") {
			t.Errorf("%q", got)
		}
	}
}

func TestInterval(t *testing.T) {
	for d, ok := range map[time.Duration]bool{0: false, 99 * time.Millisecond: false, 100 * time.Millisecond: true, time.Hour: true, 2 * time.Hour: false, -time.Second: false} {
		if err := checkInterval(d); (err == nil) != ok {
			t.Errorf("%s: %v", d, err)
		}
	}
}
