// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"math"
	"math/rand/v2"
	"time"
)

// Duration is a time.Duration that YAML writes as "20ms".
type Duration time.Duration

// D returns the time.Duration.
func (d Duration) D() time.Duration { return time.Duration(d) }

// distKind is the kind of a Dist.
type distKind uint8

const (
	distFixed distKind = iota
	distUniform
	distExponential
	distLogNormal
)

// Dist is a distribution of durations.
type Dist struct {
	kind distKind
	a    time.Duration // fixed value, lower end, mean, median
	b    time.Duration // upper end
	s    float64       // sigma of the logarithm
}

// Fixed is always d.
func Fixed(d time.Duration) Dist { return Dist{kind: distFixed, a: d} }

// Uniform is uniform over [lo, hi].
func Uniform(lo, hi time.Duration) Dist { return Dist{kind: distUniform, a: lo, b: hi} }

// Exponential has this mean.
func Exponential(mean time.Duration) Dist { return Dist{kind: distExponential, a: mean} }

// LogNormal has this median, and sigma is the standard deviation of its logarithm.
func LogNormal(median time.Duration, sigma float64) Dist {
	return Dist{kind: distLogNormal, a: median, s: sigma}
}

// longest bounds every sample, so that a heavy tail cannot occupy a device forever.
const longest = time.Hour

// draw returns a sample of at least 1 ns, unless the distribution is fixed or uniform.
func (d *Dist) draw(r *rand.Rand) time.Duration {
	switch d.kind {
	case distFixed:
		return d.a
	case distUniform:
		return d.a + time.Duration(r.Int64N(int64(d.b-d.a)+1))
	case distExponential:
		return clampTime(float64(d.a) * r.ExpFloat64())
	case distLogNormal:
		return clampTime(float64(d.a) * math.Exp(d.s*r.NormFloat64()))
	}
	return 0
}

func clampTime(f float64) time.Duration {
	return time.Duration(min(max(f, 1), float64(longest)))
}

// check describes an invalid parameter; "" if all are valid.
func (d *Dist) check(least time.Duration) string {
	switch {
	case d.a < least || d.kind == distUniform && d.b < d.a:
		if d.kind == distUniform && d.b < d.a {
			return "its upper end is below its lower end"
		}
		if least > 0 {
			return "must be above 0"
		}
		return "must not be negative"
	case d.a > longest || d.b > longest:
		return "must be an hour at most"
	case d.kind == distLogNormal && !(d.s >= 0 && d.s <= 5):
		return "sigma must be in 0..5"
	}
	return ""
}
