// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"slices"
)

// stubKinds are the constants of the classes whose entry points get a stub (runtime/cuda/stub.h). The
// other classes are hooked by the table, or pass without one.
var stubKinds = map[string]string{
	"passes": "OPENS", "cannot": "OPENS", "shares": "SHARES", "unloads": "UNLOADS", "events": "EVENTS", "code": "CODE",
}

// unnamedStubs is three times the number of addresses that the libraries of CUDA 13 ask for.
const unnamedStubs = 512

// withStubs adds the entry points that get a stub to the calls of the table, in the order of the slots.
func withStubs(d dialect, calls []call, list entryList) []call {
	known := map[string]bool{}
	for _, c := range calls {
		known[c.symbol] = true
	}
	all := slices.Clone(calls)
	for _, e := range list.entries {
		if stubKinds[e.class] != "" && !known[e.name] {
			all = append(all, call{dialect: d, symbol: e.name, kind: "stub", detail: stubKinds[e.class]})
		}
	}
	slices.SortFunc(all, bySlot)
	return all
}

// stubs defines the code of the stubs, which is the same for all: the slot is the only difference.
func stubs(d dialect, calls []call) []byte {
	var b bytes.Buffer
	b.WriteString(generated(d))
	b.WriteString("#include \"runtime/" + d.dir + "/stub.inc\"\n\n")
	for i, c := range calls {
		if c.kind == "stub" {
			fmt.Fprintf(&b, "\tnamed %s, %d\n", c.symbol, i)
		}
	}
	b.WriteString("\n\tunnamed_begin\n")
	for i := range unnamedStubs {
		fmt.Fprintf(&b, "\tunnamed %d\n", hooksOf(calls)+i)
	}
	b.WriteString("\tunnamed_end\n")
	return b.Bytes()
}

func hooksOf(calls []call) int {
	return slices.IndexFunc(calls, func(c call) bool { return c.kind == "use" })
}

// kindsOf defines the kinds of the hooked slots, and of the known names that are not hooked.
func kindsOf(d dialect, calls []call, list entryList) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "\nconst uint8_t %sstub_kinds[%sHOOKS] = {\n", d.lower, d.upper)
	for _, c := range calls {
		if c.kind == "stub" {
			fmt.Fprintf(&b, "    [%s%s] = %s%s,\n", d.upper, c.symbol, d.upper, c.detail)
		}
	}
	fmt.Fprintf(&b, "};\n\n/* Of xsi_known_%s, in its order. */\nconst uint8_t %sknown_kinds[] = {\n", d.dir, d.lower)
	for _, e := range list.entries {
		switch {
		case e.class == "hooked":
		case stubKinds[e.class] != "":
			fmt.Fprintf(&b, "    %s%s,\n", d.upper, stubKinds[e.class])
		default:
			fmt.Fprintf(&b, "    %sNO_STUB,\n", d.upper)
		}
	}
	b.WriteString("};\n")
	return b.Bytes()
}
