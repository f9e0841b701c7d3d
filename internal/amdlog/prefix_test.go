// SPDX-License-Identifier: Apache-2.0

package amdlog

import (
	"encoding/binary"
	"strings"
	"testing"
)

func TestParseHead(t *testing.T) {
	for _, test := range []struct {
		name, line string
		want       head // without message
		message    string
	}{
		{"4.5 thread only", ":3:hip_context.cpp          :50  : 2133417021 us: [7fb360ad23c0]!\thipInit ( 0 )", head{time: 2133417021, tid: 0x7fb360ad23c0, level: 3, era: EraTidOnly}, "hipInit ( 0 )"},
		{"4.5", ":3:rocdevice.cpp            :416 : 2133417021 us: 120148: [7fb360ad23c0] Numa", head{time: 2133417021, pid: 120148, tid: 0x7fb360ad23c0, level: 3, era: EraColon}, "Numa"},
		{"5.x", ":4:rocvirtual.cpp           :862 : 5697037855 us: 9174 : [tid:0x7f6309ffb6c0] HWq=0x229000", head{time: 5697037855, pid: 9174, tid: 0x7f6309ffb6c0, level: 4, era: EraColon}, "HWq=0x229000"},
		{"5.2.3", ":1:rocdevice.cpp            :424 : 1584434587 us: 29491: [tid:0x7f6ffe861740] hsa_init failed.", head{time: 1584434587, pid: 29491, tid: 0x7f6ffe861740, level: 1, era: EraColon}, "hsa_init failed."},
		{"6.2", ":3:rocdevice.cpp            :468 : 5697037855 us: [pid:2539  tid:0x7fffd49786c0] Init", head{time: 5697037855, pid: 2539, tid: 0x7fffd49786c0, level: 3, era: EraPidTid}, "Init"},
		{"6.4 stray d", ":3:rocdevice.cpp            :468 : 1917470247183d us:  Init", head{time: 1917470247183, level: 3, era: EraStrayD}, "Init"},
		{"no pid", ":3:rocdevice.cpp            :480 : 6306213494 us:  Initializing", head{time: 6306213494, level: 3, era: EraNone}, "Initializing"},
		{"7.0", ":3:rocdevice.cpp            :2967: 20159561937 us: [pid:459769 tid: 0x7f8edc1c4400] Number", head{time: 20159561937, pid: 459769, tid: 0x7f8edc1c4400, level: 3, era: EraPidTid}, "Number"},
		{"2026, hashed thread", ":4:rocvirtual.cpp           :2967: 20159561937 us: [pid:459769 tid: 0xa01bc] Number", head{time: 20159561937, pid: 459769, tid: 0xa01bc, level: 4, era: EraPidTid}, "Number"},
		{"no file and line", ":3:                         :0   : 0006306213 us:  x", head{time: 6306213, level: 3, era: EraNone}, "x"},
		{"long file name", ":3:a_source_file_with_a_rather_long_name.cpp:12345: 6306213494 us:  x", head{time: 6306213494, level: 3, era: EraNone}, "x"},
		{"colour", ":3:hip_stream.cpp           :398 : 6306213494 us:  \x1b[32m hipInit ( 0 ) \x1b[0m", head{time: 6306213494, level: 3, era: EraNone}, "\x1b[32m hipInit ( 0 ) \x1b[0m"},
		{"message in brackets", ":3:x.cpp                    :398 : 6306213494 us: [note] y", head{time: 6306213494, level: 3, era: EraNone}, "[note] y"},
		{"message with a number", ":3:x.cpp                    :398 : 6306213494 us: 16 queues", head{time: 6306213494, level: 3, era: EraNone}, "16 queues"},
	} {
		t.Run(test.name, func(t *testing.T) {
			var last identity
			for range 2 { // the second time from the cache
				h, v := parseHead([]byte(test.line), &last)
				if v != whole {
					t.Fatalf("verdict %d", v)
				}
				if got := test.line[h.message:]; got != test.message {
					t.Errorf("message %q, want %q", got, test.message)
				}
				h.message = 0
				if h != test.want {
					t.Errorf("got %+v, want %+v", h, test.want)
				}
			}
			// Every truncation of a prefix is classified as cut.
			end := strings.Index(test.line, test.message)
			for n := 1; n < end; n++ {
				var none identity
				if _, v := parseHead([]byte(test.line[:n]), &none); v == foreign {
					t.Errorf("%q is not recognized as a truncated prefix", test.line[:n])
				}
			}
		})
	}
	for _, line := range []string{
		"", "x", "=====", "3:rocdevice.cpp", ":x:rocdevice.cpp            :480 : 6306213494 us:  x",
		":3:rocdevice.cpp            :480 : 6306213494 ms:  x", ":3:rocdevice.cpp            :4#0 : 6306213494 us:  x",
		":3:rocdevice.cpp            :480 : 63062134941234567 us:  x", ":3:rocdevice.cpp            :480 : 6306213494 us: [pid:x tid: 0x1] x",
	} {
		var none identity
		if _, v := parseHead([]byte(line), &none); v != foreign {
			t.Errorf("%q: verdict %d", line, v)
		}
	}
}

func TestEightDigits(t *testing.T) {
	for text, want := range map[string]uint64{"00000000": 0, "12345678": 12345678, "99999999": 99999999, "00000001": 1, "10000000": 10000000} {
		if got, ok := eightDigits(binary.LittleEndian.Uint64([]byte(text))); !ok || got != want {
			t.Errorf("%s: %d, %t", text, got, ok)
		}
	}
	for i := range 8 {
		for _, c := range []byte("/: \x00\xffdg") {
			text := []byte("12345678")
			text[i] = c
			if got, ok := eightDigits(binary.LittleEndian.Uint64(text)); ok {
				t.Errorf("%q: %d", text, got)
			}
		}
	}
}
