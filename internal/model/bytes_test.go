// SPDX-License-Identifier: Apache-2.0

package model

import "testing"

func TestBytes(t *testing.T) {
	for _, test := range []struct {
		text  string
		bytes Bytes
		full  string
		short string
	}{
		{"40GiB", 40 << 30, "40GiB", "40GiB"},
		{"1.5GiB", 3 << 29, "1.5GiB", "1.5GiB"},
		{"1536MiB", 3 << 29, "1.5GiB", "1.5GiB"},
		{"2048", 2048, "2KiB", "2KiB"},
		{"0", 0, "0B", "0"},
		{"1", 1, "1B", "1B"},
		{"1073741825", 1<<30 + 1, "1073741825B", "1GiB"},
		{"1023 MiB", 1023 << 20, "1023MiB", "1023MiB"},
		{"1TiB", 1 << 40, "1TiB", "1TiB"},
	} {
		got, err := ParseBytes(test.text)
		if err != nil || got != test.bytes || got.String() != test.full || got.Short() != test.short {
			t.Errorf("%s: %d, %v, %q, %q; want %d, %q, %q", test.text, got, err, got.String(), got.Short(), test.bytes, test.full, test.short)
		}
		if again, err := ParseBytes(got.String()); err != nil || again != got {
			t.Errorf("%s: %q is read as %d, %v", test.text, got.String(), again, err)
		}
	}
	for _, text := range []string{"", "GiB", "-1GiB", "40GB", "forty", "1e300", "NaN", "inf"} {
		if got, err := ParseBytes(text); err == nil {
			t.Errorf("%q is %d", text, got)
		}
	}
}
