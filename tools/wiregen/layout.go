// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"path/filepath"
	"strings"
)

// layout describes all headers, one fact a line: constants, enum values, and where each field is.
// Reserved fields are left out, because a later version may use them.
func layout(root string) (text string, version int64, err error) {
	var b strings.Builder
	for _, c := range contracts {
		h, err := load(root, c)
		if err != nil {
			return "", 0, err
		}
		fmt.Fprintf(&b, "# %s\n", filepath.Base(filepath.Dir(c.header))+"/"+filepath.Base(c.header))
		for _, d := range h.defines {
			fmt.Fprintf(&b, "define %s %d\n", d.name, d.value)
			if d.name == "VERSION" {
				version = d.value
			}
		}
		for _, e := range h.enums {
			for _, m := range e.members {
				fmt.Fprintf(&b, "enum %s %s %d\n", e.name, m.name, m.value)
			}
		}
		for _, s := range h.structs {
			fmt.Fprintf(&b, "struct %s bytes %d\n", s.name, s.bytes)
			for _, f := range s.fields {
				if !strings.HasPrefix(f.name, "_rsv") {
					fmt.Fprintf(&b, "field %s.%s %s at %d, %d bytes\n", s.name, f.name, f.ctype, f.offset, f.bytes)
				}
			}
		}
	}
	return b.String(), version, nil
}
