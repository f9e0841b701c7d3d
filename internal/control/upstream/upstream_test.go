// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"os"
	"strings"
	"testing"

	"xsched/internal/policy"
)

func TestDevicesAndHandles(t *testing.T) {
	for address, want := range map[string]uint64{
		"0000:01:00.0":     2<<32 | 0x0100,
		"0001:81:1f.7":     2<<32 | 0x1_81_ff,
		"10000:01:00.0":    2<<32 | 0x0100, // only 32 bits of it fit
		"nothing":          2 << 32,
		"00000000:3b:02.1": 2<<32 | 0x3b11,
	} {
		if got := deviceOf(address); got != want {
			t.Errorf("deviceOf(%s) = %x, want %x", address, got, want)
		}
	}
	q := Queue{Handle: HandleOf(3, 5), Device: deviceOf("0000:01:00.0")}
	if q.HandleText() != "0x30005" || q.DeviceText() != "GPU(0x200000100)" {
		t.Errorf("%s %s", q.HandleText(), q.DeviceText())
	}
	if h, ok := ParseHandle(q.HandleText()); !ok || h != q.Handle {
		t.Errorf("parseHandle = %x, %v", h, ok)
	}
}

// Numbers that XSched's tools send must mean the same here.
func TestPolicyNumbers(t *testing.T) {
	for _, name := range policy.Names() {
		n, err := PolicyNumber(name)
		if err != nil || n != policy.Number(name) || PolicyName(n) != name {
			t.Errorf("%s: number %d (%v) in the tools, %d in the registry", name, n, err, policy.Number(name))
		}
	}
	if _, err := PolicyNumber("nonsense"); err == nil {
		t.Error("an invalid name has a number")
	}
}

// TestVariablesAreDocumented: docs/migration.md has each variable without effect, and a value that asks for none is none.
func TestVariablesAreDocumented(t *testing.T) {
	text, err := os.ReadFile("../../../docs/migration.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range Variables() {
		if !strings.Contains(string(text), "`"+v.Name+"`") {
			t.Errorf("docs/migration.md lacks %s", v.Name)
		}
		if v.Ignored("") || !v.Ignored("x") || v.Ignored("off") == v.Switch {
			t.Errorf("%s: unset %v, off %v", v.Name, v.Ignored(""), v.Ignored("off"))
		}
	}
}
