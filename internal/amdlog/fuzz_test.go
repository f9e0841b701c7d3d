// SPDX-License-Identifier: Apache-2.0

package amdlog

import (
	"strings"
	"testing"
)

// FuzzLog checks that every line is counted once, that every mark is a kernel,
// and that the result does not depend on chunk boundaries.
func FuzzLog(f *testing.F) {
	f.Add(prefix70 + dispatch70 + "\n" + dispatchOld + "\ntext\n" + prefix70[:20])
	f.Add(prefix70 + dispatch70[:90] + prefix70 + dispatch70 + "\x00\n\r\n")
	f.Add(":3:rocvirtual.cpp           :3351: 20161701384 us: [pid:1 tid: 0x1] ShaderName : a\n:3:x:1: 1 us: 12: [ab] \n:3::0: 1d us:  ")
	f.Add("Dispatch Header HWq=0x1 \n:1:x:1:1 us: Created SWq=0x\n:1:x:1:1 us: created hardware queue 0x1 with size 1 with priority 2")
	f.Fuzz(func(t *testing.T, text string) {
		if len(text) > 1<<15 || strings.HasPrefix(text, "\x1f\x8b") {
			t.Skip()
		}
		l := read(t, text, Options{Workers: 1})
		lines := uint64(strings.Count(text, "\n"))
		if text != "" && !strings.HasSuffix(text, "\n") {
			lines++
		}
		if l.Lines.Total != lines || l.Lines.Records+l.Lines.Text+l.Lines.Damaged != lines {
			t.Fatalf("%d lines, counted %+v", lines, l.Lines)
		}
		if want := uint64(strings.Count(text, dispatchMark)); l.Dispatches != want {
			t.Fatalf("%d dispatches, want %d", l.Dispatches, want)
		}
		if got, want := asJSON(t, read(t, text, Options{Workers: 2, chunk: 5})), asJSON(t, l); got != want {
			t.Fatalf("chunks of 5 bytes give\n%s\nwant\n%s", got, want)
		}
	})
}

// FuzzLine checks that the cached identity does not change the result.
func FuzzLine(f *testing.F) {
	f.Add(prefix70 + "x")
	f.Add(dispatchOld)
	f.Add(":3:hip_context.cpp          :50  : 2133417021 us: [7fb360ad23c0]!\thipInit")
	f.Fuzz(func(t *testing.T, line string) {
		var none, known identity
		first, v := parseHead([]byte(line), &none)
		for range 2 {
			if again, w := parseHead([]byte(line), &known); again != first || w != v {
				t.Fatalf("%+v %d, then %+v %d", first, v, again, w)
			}
		}
		if v == whole && (first.message < 0 || first.message > len(line)) {
			t.Fatalf("message at %d of %d", first.message, len(line))
		}
	})
}
