// SPDX-License-Identifier: Apache-2.0

package model

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Bytes is an amount of memory.
type Bytes int64

// byteUnits in the order in which String tries them.
var byteUnits = []struct {
	name string
	of   Bytes
}{{"TiB", 1 << 40}, {"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}, {"B", 1}}

// ParseBytes reads an amount such as 40GiB, 1.5GiB, 512MiB or a plain number of bytes.
func ParseBytes(text string) (Bytes, error) {
	number, unit := text, Bytes(1)
	for _, u := range byteUnits {
		if rest, ok := strings.CutSuffix(text, u.name); ok {
			number, unit = strings.TrimSpace(rest), u.of
			break
		}
	}
	n, err := strconv.ParseFloat(number, 64)
	if err != nil || n < 0 || n*float64(unit) >= math.MaxInt64 || math.IsNaN(n) {
		return 0, fmt.Errorf("read %q as an amount of memory: want a number with KiB, MiB, GiB or TiB, such as 40GiB", text)
	}
	return Bytes(n * float64(unit)), nil
}

// String writes the amount with the largest unit that leaves at most two decimals, so that ParseBytes reads it
// back; other amounts are in bytes.
func (b Bytes) String() string {
	for _, u := range byteUnits[:len(byteUnits)-1] {
		if b < u.of {
			continue
		}
		if hundredths := float64(b) * 100 / float64(u.of); hundredths == math.Trunc(hundredths) {
			return strconv.FormatFloat(hundredths/100, 'f', -1, 64) + u.name
		}
	}
	return strconv.FormatInt(int64(b), 10) + "B"
}

// Short rounds the amount to three digits, for people.
func (b Bytes) Short() string {
	for _, u := range byteUnits {
		if b >= u.of {
			return strconv.FormatFloat(float64(b)/float64(u.of), 'g', max(3, len(strconv.FormatInt(int64(b/u.of), 10))), 64) + u.name
		}
	}
	return "0"
}
