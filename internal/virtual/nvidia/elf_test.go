// SPDX-License-Identifier: Apache-2.0

package vnvidia

import (
	"debug/elf"
	"fmt"
	"strings"
	"testing"
)

// checkSymbols rejects symbols newer than GLIBC_2.28 and unintended exports.
func checkSymbols(t *testing.T, path string, cuda bool) {
	t.Helper()
	file, err := elf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	needed, err := file.ImportedSymbols()
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range needed {
		var major, minor int
		if n, _ := fmt.Sscanf(s.Version, "GLIBC_%d.%d", &major, &minor); n == 2 && (major > 2 || minor > 28) {
			t.Errorf("%s needs %s@%s", path, s.Name, s.Version)
		}
	}
	symbols, err := file.DynamicSymbols()
	if err != nil {
		t.Fatal(err)
	}
	meant := map[string]bool{"open": true, "open64": true, "openat": true, "openat64": true, "ioctl": true}
	for _, s := range symbols {
		if s.Section == elf.SHN_UNDEF || s.Section == elf.SHN_ABS || elf.ST_TYPE(s.Info) == elf.STT_SECTION {
			continue
		}
		if cuda && !strings.HasPrefix(s.Name, "cu") || !cuda && !meant[s.Name] {
			t.Errorf("%s exports %s", path, s.Name)
		}
	}
}
