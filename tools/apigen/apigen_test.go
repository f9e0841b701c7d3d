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
	for name, code := range want {
		got, err := os.ReadFile("../../python/xsched/" + name)
		if err != nil {
			t.Fatal(err)
		}
		if string(got) != code {
			t.Errorf("python/xsched/%s is stale; run `go run ./tools/apigen`", name)
		}
	}
	for line, name := range map[string]string{
		"    ERROR_NOT_SUPPORTED = 5\n":            "enums_gen.py",
		"    CPU_HIGHEST_PRIORITY_FIRST = 3\n":     "enums_gen.py",
		"PRIORITY_MIN = -255\n":                    "enums_gen.py",
		"    kPolicyCPUHighestPriorityFirst = 3\n": "upstream_gen.py",
		"    kQueueFeatureMaskAll = -1\n":          "upstream_gen.py",
	} {
		if !strings.Contains(want[name], line) {
			t.Errorf("%s has no line %q", name, line)
		}
	}
	if strings.Contains(want["upstream_gen.py"], "class XSQueueKind") {
		t.Error("an extension is among upstream's enums")
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
