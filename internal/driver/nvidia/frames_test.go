// SPDX-License-Identifier: Apache-2.0

package nvidia

import (
	"bytes"
	"errors"
	"reflect"
	"testing"

	"xsched/internal/wire"
	"xsched/internal/wire/wiretest"
)

func TestOffsetsMatchC(t *testing.T) {
	wiretest.Offsets(t, "../../..", "frames_gen.go", "shim/driver/rm/frames.h", RMEvent{}, RM{})
}

func TestFrames(t *testing.T) {
	events := []RMEvent{{Kind: RMAlloc, Client: 1, Parent: 2, Object: 3, ObjectClass: 4, Value: 5}, {Kind: RMFree}}
	b, err := EncodeRM(events)
	if err != nil {
		t.Fatal(err)
	}
	if back, err := DecodeRM(b); err != nil || !reflect.DeepEqual(back, events) {
		t.Fatalf("%v %v", back, err)
	}
	one, _ := EncodeRM([]RMEvent{{Kind: RMFree}})
	edit := func(off int, v byte) []byte {
		c := bytes.Clone(one)
		c[off] = v
		return c
	}
	for name, b := range map[string][]byte{
		"count 0": edit(OffRMCount, 0), "count 65": edit(OffRMCount, 65), "count 2": edit(OffRMCount, 2),
		"kind": edit(OffRMEvents, 9), "hello": wire.EncodeHello(wire.Hello{}),
	} {
		if _, err := DecodeRM(b); !errors.Is(err, wire.ErrFrame) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func FuzzFrames(f *testing.F) {
	b, _ := EncodeRM([]RMEvent{{Kind: RMClient}, {Kind: RMAlloc}})
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		if events, err := DecodeRM(b); err == nil && len(events) > MaxRMEvents {
			t.Error("too many events")
		}
	})
}
