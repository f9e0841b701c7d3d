// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"strings"
	"testing"
)

func TestGeneratedIsCurrent(t *testing.T) {
	src, err := os.ReadFile("../../shim/include/xsched/xsched.h")
	if err != nil {
		t.Fatal(err)
	}
	want, err := generate(string(src))
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile("../../python/xsched/enums_gen.py")
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != want {
		t.Error("python/xsched/enums_gen.py is stale; run `go run ./tools/apigen`")
	}
	for _, line := range []string{"    ERROR_NOT_SUPPORTED = 5\n", "    CPU_HIGHEST_PRIORITY_FIRST = 3\n", "PRIORITY_MIN = -255\n"} {
		if !strings.Contains(want, line) {
			t.Errorf("no line %q", line)
		}
	}
}

func TestRefusesWhatItCannotRead(t *testing.T) {
	src, err := os.ReadFile("../../shim/include/xsched/xsched.h")
	if err != nil {
		t.Fatal(err)
	}
	for _, change := range [][2]string{
		{"kXSchedErrorHardware = 1,", "kXSchedErrorHardware,"},
		{"kQueueStateIdle = 1", "kIdle = 1"},
		{"} XPolicyType;", "} XPolicies;"},
	} {
		broken := strings.Replace(string(src), change[0], change[1], 1)
		if broken == string(src) {
			t.Fatalf("%q is not in the header", change[0])
		}
		if _, err := generate(broken); err == nil {
			t.Errorf("%q was accepted", change[1])
		}
	}
}
