// SPDX-License-Identifier: Apache-2.0

// Package amdlog parses the AMD_LOG_LEVEL logs of AMD's HIP runtime, in all
// known line formats, and reports the submissions of each process to each
// hardware queue. Threads and the application write logs concurrently, and a
// dying process truncates them. Damaged lines are counted, never an error.
package amdlog

import (
	"bytes"
	"encoding/binary"
)

// Era is the format of the process and thread field of a line. The format
// differs between ROCm generations.
type Era uint8

// The known eras.
const (
	EraPidTid  Era = iota // 6.x, 7.x: "[pid:459769 tid: 0x7f8edc1c4400] "
	EraColon              // 4.5, 5.x: "9174 : [tid:0x7f6309ffb6c0] " and "120148: [7fb360ad23c0] "
	EraTidOnly            // 4.5: "[7fb360ad23c0]!\t"
	EraNone               // 6.3 and later at level 3: " "
	EraStrayD             // 6.4: "1917470247183d us:  "
	eras
)

// String returns the era's name in the JSON output.
func (e Era) String() string {
	return [...]string{"pid-tid", "pid-colon", "tid-only", "no-pid", "stray-d"}[min(e, eras-1)]
}

const (
	maxSource  = 80 // length of the source file name; the runtime pads it to 25
	maxTime    = 16 // digits of the timestamp: 10^16 us are 300 years
	plainColon = 28 // offset of the colon after a name of up to 25 bytes
)

// verdict is the result of parsing a prefix.
type verdict uint8

const (
	whole   verdict = iota
	cutOff          // a valid start of a prefix
	foreign         // not a prefix
)

// head is a parsed prefix.
type head struct {
	time    uint64 // monotonic us
	tid     uint64
	pid     uint32
	level   uint8
	era     Era
	message int // offset of the message
}

// identity caches the last "[pid:... tid: ...] ". Consecutive lines are mostly
// of one thread, and comparing is cheaper than parsing.
type identity struct {
	text [64]byte
	n    int
	tid  uint64
	pid  uint32
	era  Era
}

// parseHead parses ":level:file:line: time us: writer ", which the runtime
// prints with ":%d:%-25s:%-4d: %010lu us: ".
func parseHead(b []byte, last *identity) (head, verdict) {
	var h head
	if len(b) < 3 {
		return h, shortHead(b)
	}
	if b[0] != ':' || !isDigit(b[1]) || b[2] != ':' {
		return h, foreign
	}
	h.level = b[1] - '0'
	at, v := 0, foreign
	if len(b) > plainColon && b[plainColon] == ':' {
		at, v = parseTime(b, plainColon+1, &h)
	}
	if v != whole {
		// A longer file name, or one with less padding.
		name := bytes.IndexByte(b[3:min(len(b), 3+maxSource)], ':')
		if name < 0 {
			if len(b) < 3+maxSource {
				return h, cutOff
			}
			return h, foreign
		}
		if at, v = parseTime(b, 3+name+1, &h); v != whole {
			return h, v
		}
	}
	return h, parseWriter(b, at, &h, last)
}

// shortHead classifies a line of less than three bytes.
func shortHead(b []byte) verdict {
	if len(b) >= 1 && b[0] == ':' && (len(b) == 1 || isDigit(b[1])) {
		return cutOff
	}
	return foreign
}

// parseTime parses "line: time us:" at i and returns the offset after it.
func parseTime(b []byte, i int, h *head) (int, verdict) {
	start := i
	for i < len(b) && isDigit(b[i]) {
		i++
	}
	digits := i - start
	for i < len(b) && b[i] == ' ' {
		i++
	}
	if i == len(b) {
		return i, cutOff
	}
	if digits == 0 || b[i] != ':' {
		return i, foreign
	}
	for i++; i < len(b) && b[i] == ' '; i++ {
	}
	start = i
	var t uint64
	if len(b)-i >= 8 {
		if v, ok := eightDigits(binary.LittleEndian.Uint64(b[i:])); ok {
			t = v
			i += 8
		}
	}
	for i < len(b) && b[i]-'0' < 10 {
		t = t*10 + uint64(b[i]-'0')
		i++
	}
	if i == len(b) {
		return i, cutOff
	}
	if i == start || i-start > maxTime {
		return i, foreign
	}
	h.time = t
	if b[i] == 'd' {
		h.era = EraStrayD
		i++
	}
	if len(b)-i < 4 {
		if bytes.HasPrefix([]byte(" us:"), b[i:]) {
			return i, cutOff
		}
		return i, foreign
	}
	if b[i] != ' ' || b[i+1] != 'u' || b[i+2] != 's' || b[i+3] != ':' {
		return i, foreign
	}
	return i + 4, whole
}

// parseWriter parses the process and thread after "us:".
func parseWriter(b []byte, i int, h *head, last *identity) verdict {
	if i == len(b) {
		return cutOff
	}
	if b[i] != ' ' {
		return foreign
	}
	i++
	rest := b[i:]
	if last.n > 0 && len(rest) >= last.n && string(rest[:last.n]) == string(last.text[:last.n]) {
		h.pid, h.tid, h.message = last.pid, last.tid, i+last.n
		if h.era != EraStrayD {
			h.era = last.era
		}
		return whole
	}
	if len(rest) == 0 {
		return cutOff
	}
	n, era, v := writerField(rest, h)
	if v != whole {
		return v
	}
	if h.era != EraStrayD {
		h.era = era
	}
	h.message = i + n
	// Do not cache a field without its trailing blank: the next line may have one.
	if n > 0 && n <= len(last.text) && era != EraNone && rest[n-1] <= ' ' {
		copy(last.text[:], rest[:n])
		last.n, last.pid, last.tid, last.era = n, h.pid, h.tid, era
	}
	return whole
}

// writerField parses one of the formats of Era and returns its length.
func writerField(b []byte, h *head) (int, Era, verdict) {
	switch {
	case b[0] == ' ':
		return 1, EraNone, whole
	case b[0] == '[':
		if text, ok := bytes.CutPrefix(b, []byte("[pid:")); ok {
			return pidTid(b, text, h)
		}
		if len(b) < 5 && bytes.HasPrefix([]byte("[pid:"), b) {
			return 0, 0, cutOff
		}
		return thread(b, 0, EraTidOnly, h)
	case isDigit(b[0]):
		i, pid := 0, uint64(0)
		for ; i < len(b) && isDigit(b[i]) && i < 10; i++ {
			pid = pid*10 + uint64(b[i]-'0')
		}
		if i < len(b) && b[i] == ' ' {
			i++
		}
		if i+1 >= len(b) {
			return 0, 0, cutOff
		}
		if b[i] != ':' || b[i+1] != ' ' || pid > 1<<32-1 {
			return 0, EraNone, whole // a message that starts with a number
		}
		if i += 2; i == len(b) {
			return 0, 0, cutOff
		}
		if b[i] != '[' {
			return 0, EraNone, whole
		}
		n, era, v := thread(b, i, EraColon, h)
		if v == whole && era == EraColon {
			h.pid = uint32(pid)
		}
		return n, era, v
	}
	return 0, EraNone, whole
}

// pidTid parses "459769 tid: 0x7f8edc1c4400] "; text follows "[pid:" in b.
func pidTid(b, text []byte, h *head) (int, Era, verdict) {
	i, pid := 0, uint64(0)
	for ; i < len(text) && isDigit(text[i]) && i < 11; i++ {
		pid = pid*10 + uint64(text[i]-'0')
	}
	digits := i
	for i < len(text) && text[i] == ' ' {
		i++
	}
	if i == len(text) {
		return 0, 0, cutOff
	}
	if digits == 0 || pid > 1<<32-1 {
		return 0, 0, foreign
	}
	for _, c := range []byte("tid:") {
		if i == len(text) {
			return 0, 0, cutOff
		}
		if text[i] != c {
			return 0, 0, foreign
		}
		i++
	}
	h.pid = uint32(pid)
	n, v := closing(text, i, h)
	return len(b) - len(text) + n, EraPidTid, v
}

// thread parses "[tid:0x7f6309ffb6c0] " or "[7fb360ad23c0]!\t" at i. Other
// text in brackets belongs to the message.
func thread(b []byte, i int, era Era, h *head) (int, Era, verdict) {
	start := i
	i++
	tagged := bytes.HasPrefix(b[i:], []byte("tid:"))
	if tagged {
		i += 4
	}
	n, v := closing(b, i, h)
	if v == foreign && !tagged {
		h.tid = 0
		return start, EraNone, whole
	}
	return n, era, v
}

// closing parses " 0x7f8edc1c4400] " or "7fb360ad23c0]!\t" at i.
func closing(b []byte, i int, h *head) (int, verdict) {
	for i < len(b) && b[i] == ' ' {
		i++
	}
	if i+1 < len(b) && b[i] == '0' && b[i+1] == 'x' {
		i += 2
	}
	start, tid := i, uint64(0)
	for ; i < len(b); i++ {
		d := hexDigit(b[i])
		if d > 15 {
			break
		}
		tid = tid<<4 | uint64(d)
	}
	if i == len(b) {
		return i, cutOff
	}
	if i == start || i-start > 16 || b[i] != ']' {
		return i, foreign
	}
	h.tid = tid
	i++
	if i+1 < len(b) && b[i] == '!' && b[i+1] == '\t' {
		return i + 2, whole
	}
	if i < len(b) && b[i] == ' ' {
		i++
	}
	return i, whole
}

// eightDigits converts eight ASCII digits, the first one in the lowest byte.
// The result is false if a byte is not a digit.
func eightDigits(v uint64) (uint64, bool) {
	const (
		zeros = 0x3030303030303030
		highs = 0xf0f0f0f0f0f0f0f0
		sixes = 0x0606060606060606
	)
	if v&highs != zeros || (v+sixes)&highs != zeros {
		return 0, false
	}
	v -= zeros
	v = v*10 + v>>8 // pairs, in every second byte
	return (v&0x000000ff000000ff*(100+1000000<<32) + v>>16&0x000000ff000000ff*(1+10000<<32)) >> 32, true
}

func isDigit(c byte) bool { return c-'0' < 10 }

// hexDigit returns the value of a digit, above 15 if c is not a digit.
func hexDigit(c byte) byte {
	switch {
	case c-'0' < 10:
		return c - '0'
	case c-'a' < 6:
		return c - 'a' + 10
	case c-'A' < 6:
		return c - 'A' + 10
	}
	return 255
}
