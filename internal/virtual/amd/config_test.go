// SPDX-License-Identifier: Apache-2.0

package vamd

import "testing"

func TestParseConfig(t *testing.T) {
	want := DefaultConfig()
	if got, err := ParseConfig(""); err != nil || got != want {
		t.Errorf("%+v, %v", got, err)
	}
	want.Variant, want.Scheduler, want.Minor, want.Numbers = DKMS, MES, 15, ByPID
	if got, err := ParseConfig("dkms,mes,1.15,by-pid"); err != nil || got != want {
		t.Errorf("%+v, %v", got, err)
	}
	for _, bad := range []string{"windows", "1.10", "1.18", "15", ",", "dkms,"} {
		if _, err := ParseConfig(bad); err == nil {
			t.Errorf("%q is accepted", bad)
		}
	}
}
