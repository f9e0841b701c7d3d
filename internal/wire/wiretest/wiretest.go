// SPDX-License-Identifier: Apache-2.0

// Package wiretest compares generated Go structs with the C headers they come from.
package wiretest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"
)

// Offsets compares the C compiler's struct sizes and offsets with the generated file and Go's
// layout. root is the source tree.
func Offsets(t *testing.T, root, generated, header string, structs ...any) {
	t.Helper()
	gcc, err := exec.LookPath("gcc")
	if err != nil {
		t.Skip("needs gcc")
	}
	gen, err := os.ReadFile(generated)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{}
	for _, m := range regexp.MustCompile(`(?m)^\s*((?:SizeOf|Off)\w+)\s*=\s*(\d+)$`).FindAllStringSubmatch(string(gen), -1) {
		want[m[1]] = m[2]
	}
	var c strings.Builder
	fmt.Fprintf(&c, "#include <stddef.h>\n#include <stdio.h>\n#include \"%s\"\nint main(void){\n", header)
	for _, st := range structs {
		rt := reflect.TypeOf(st)
		cname := "xsw_" + snake(rt.Name())
		fmt.Fprintf(&c, "printf(\"SizeOf%s %%zu\\n\", sizeof(struct %s));\n", rt.Name(), cname)
		if want["SizeOf"+rt.Name()] != fmt.Sprint(rt.Size()) {
			t.Errorf("Go lays %s out in %d bytes, generated %s", rt.Name(), rt.Size(), want["SizeOf"+rt.Name()])
		}
		for f := range rt.Fields() {
			cf := snake(f.Name)
			if strings.HasPrefix(cf, "rsv") {
				cf = "_" + cf
			}
			fmt.Fprintf(&c, "printf(\"Off%s%s %%zu\\n\", offsetof(struct %s, %s));\n", rt.Name(), f.Name, cname, cf)
			if want["Off"+rt.Name()+f.Name] != fmt.Sprint(f.Offset) {
				t.Errorf("Go has %s.%s at %d, generated %s", rt.Name(), f.Name, f.Offset, want["Off"+rt.Name()+f.Name])
			}
		}
	}
	c.WriteString("return 0;}\n")
	dir := t.TempDir()
	src, bin := filepath.Join(dir, "o.c"), filepath.Join(dir, "o")
	if err := os.WriteFile(src, []byte(c.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(gcc, "-std=c11", "-I"+root, "-I"+root+"/shim/include", "-o", bin, src).CombinedOutput(); err != nil {
		t.Fatalf("compile: %v\n%s", err, out)
	}
	out, err := exec.Command(bin).Output()
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for line := range strings.SplitSeq(strings.TrimSpace(string(out)), "\n") {
		name, val, _ := strings.Cut(line, " ")
		if want[name] != val {
			t.Errorf("%s: C says %s, Go says %s", name, val, want[name])
		}
		n++
	}
	if n != len(want) {
		t.Errorf("C printed %d values, the generated file has %d", n, len(want))
	}
}

// snake converts a Go name to its C name.
func snake(s string) string {
	for _, w := range []string{"PCI", "PID", "ID", "NS", "US", "SLO", "GPU"} {
		s = strings.ReplaceAll(s, w, w[:1]+strings.ToLower(w[1:]))
	}
	s = regexp.MustCompile(`([A-Z]+)([A-Z][a-z])`).ReplaceAllString(s, "${1}_${2}")
	return strings.ToLower(regexp.MustCompile(`([a-z0-9])([A-Z])`).ReplaceAllString(s, "${1}_${2}"))
}
