// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"debug/elf"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The dynamic loader has no interpreter, but is no statically linked program.
func TestCheckPreloadLoader(t *testing.T) {
	self, err := os.Readlink("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	for _, program := range []string{"/bin/sh", self} {
		file, err := elf.Open(program)
		if err != nil {
			t.Fatal(err)
		}
		section := file.Section(".interp")
		if section == nil {
			file.Close()
			continue
		}
		text, err := section.Data()
		file.Close()
		if err != nil {
			t.Fatal(err)
		}
		loader := strings.TrimRight(string(text), "\x00")
		if got := checkPreload(loader); got.reason != "" {
			t.Errorf("checkPreload(%s) = %q, want none", loader, got.reason)
		}
		script := filepath.Join(t.TempDir(), "script")
		if err := os.WriteFile(script, []byte("#!"+loader+" "+program+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
		if got := checkPreload(script); got.reason != "" {
			t.Errorf("checkPreload(%s) = %q, want none", script, got.reason)
		}
		return
	}
	t.Skip("no program with an interpreter")
}

// A program of another ABI can't load the shim.
func TestCheckPreloadABI(t *testing.T) {
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func([]byte){
		"64-bit RISCV": func(b []byte) { b[18], b[19] = byte(elf.EM_RISCV), 0 },
		"64-bit PPC64": func(b []byte) { b[18], b[19] = byte(elf.EM_PPC64), 0 },
	} {
		path := filepath.Join(t.TempDir(), "program")
		header := append([]byte{}, self...)
		change(header)
		if err := os.WriteFile(path, header, 0o755); err != nil {
			t.Fatal(err)
		}
		if got := checkPreload(path); !strings.Contains(got.reason, "is made for "+name) {
			t.Errorf("checkPreload of a %s program = %q", name, got.reason)
		}
	}
}
