// SPDX-License-Identifier: Apache-2.0

package report

import (
	"fmt"
	"math"
	"strings"
)

// Outcome is what a scheduler changed for a latency-critical program, and what it left to the others.
type Outcome struct {
	Before, After float64 // P99 without and with the scheduler, in the same unit
	Kept          float64 // throughput of the others, relative to alone; negative: unknown
}

// Headline states the worst of several outcomes in one sentence, so that it holds for all of them. Who
// may name what was compared, base names with what, for example "native". It is empty without outcomes.
func Headline(who, base string, outcomes ...Outcome) string {
	worst, kept, known := math.Inf(1), math.Inf(1), false
	n := 0
	for _, o := range outcomes {
		if o.Before <= 0 || o.After <= 0 {
			continue
		}
		n++
		worst = min(worst, o.Before/o.After)
		if o.Kept >= 0 {
			kept, known = min(kept, o.Kept), true
		}
	}
	if n == 0 {
		return ""
	}
	least, most := "", ""
	if n > 1 {
		least, most = "at least ", "up to "
	}
	var b strings.Builder
	factor := Factor(max(worst, 1/worst))
	switch {
	case factor == "1.0x":
		b.WriteString("same P99 as " + base)
	case worst > 1:
		b.WriteString(least + factor + " lower P99 than " + base)
	default:
		b.WriteString(most + factor + " higher P99 than " + base)
	}
	if known {
		fmt.Fprintf(&b, "; background keeps %s%s", least, RoundPercent(kept))
	}
	text := b.String()
	if who != "" {
		return who + ": " + text
	}
	return strings.ToUpper(text[:1]) + text[1:]
}

// Factor formats a ratio with two digits: 1.2x, 13x.
func Factor(v float64) string {
	if v >= 9.95 {
		return fmt.Sprintf("%.0fx", v)
	}
	return fmt.Sprintf("%.1fx", v)
}

// RoundPercent formats a fraction without decimals.
func RoundPercent(part float64) string { return fmt.Sprintf("%.0f %%", 100*part) }
