// SPDX-License-Identifier: Apache-2.0

package header

import (
	"slices"
	"testing"
)

const sample = `
#define COUNT (0x3U) /* finn: Evaluated from "THREE" */
#define ALIAS COUNT
typedef struct
{
    NvHandle a; // a comment; with a semicolon
    NvBool   b, c;
    NvP64    p NV_ALIGN_BYTES(8);
    NvV32    last;
} PLAIN;
typedef struct TAGGED {
    NvBool first;
    NV_DECLARE_ALIGNED(NvU64 wide, 8);
    NvU32 list[ALIAS];
    PLAIN inner;
} TAGGED;
typedef TAGGED RENAMED;
struct c_style { uint8_t x, rest[3]; uint64_t y; struct c_small z; };
struct c_small { uint32_t q; };
struct odd { float f; };
`

func TestLayout(t *testing.T) {
	f := Parse(sample)
	for name, want := range map[string]Struct{
		"PLAIN":   {"PLAIN", 24, 8, []Field{{"a", 0, 4}, {"b", 4, 1}, {"c", 5, 1}, {"p", 8, 8}, {"last", 16, 4}}},
		"TAGGED":  {"TAGGED", 56, 8, []Field{{"first", 0, 1}, {"wide", 8, 8}, {"list", 16, 12}, {"inner", 32, 24}}},
		"RENAMED": {"RENAMED", 56, 8, []Field{{"first", 0, 1}, {"wide", 8, 8}, {"list", 16, 12}, {"inner", 32, 24}}},
		"c_style": {"c_style", 24, 8, []Field{{"x", 0, 1}, {"rest", 1, 3}, {"y", 8, 8}, {"z", 16, 4}}},
	} {
		got, err := f.Struct(name)
		if err != nil || got.Size != want.Size || got.Align != want.Align || got.Name != want.Name || !slices.Equal(got.Fields, want.Fields) {
			t.Errorf("%s: %+v %v, want %+v", name, got, err, want)
		}
	}
	for _, name := range []string{"odd", "absent"} {
		if s, err := f.Struct(name); err == nil {
			t.Errorf("%s was laid out as %+v", name, s)
		}
	}
	if n, err := f.Number("ALIAS"); n != 3 || err != nil {
		t.Errorf("%d %v", n, err)
	}
	if _, err := f.Number("absent"); err == nil {
		t.Error("evaluated a missing constant")
	}
	if names := f.Names("A"); !slices.Equal(names, []string{"ALIAS"}) {
		t.Error(names)
	}
}
