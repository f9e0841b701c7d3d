// SPDX-License-Identifier: Apache-2.0

package model

// Class is how a program submits its requests.
type Class int8

// The classes. A launch-bound program submits kernel by kernel nearly until its request ends, so that
// the device idles between kernels. A GPU-bound one submits and then waits for the device.
const (
	ClassUnknown Class = iota
	ClassGPUBound
	ClassLaunchBound
)

func (c Class) String() string {
	switch c {
	case ClassGPUBound:
		return "GPU-bound"
	case ClassLaunchBound:
		return "launch-bound"
	}
	return "unknown"
}

const (
	// enough requests make a class, and those that speak against it count double: each change costs driver calls.
	// predict.TestClass.
	enough = 3
	// Doubtful requests count nothing for launch-bound after that was taken back: a program near the limit must not
	// change again and again. sim.TestNearTheLimit.
	Doubtful = 1024
)

// Evidence decides the class of a program. The zero value is that of an unknown one.
type Evidence struct {
	Is    Class
	sum   int // of requests that speak for launch-bound, and against it
	doubt int // requests that count nothing for launch-bound
}

// Add adds a request.
func (e *Evidence) Add(launchBound bool) {
	e.doubt = max(0, e.doubt-1)
	switch {
	case !launchBound && e.sum > 0:
		e.sum -= 2
	case !launchBound:
		e.sum--
	case e.sum < 0:
		e.sum += 2
	case e.doubt == 0:
		e.sum++
	}
	e.sum = max(-2*enough, min(2*enough, e.sum))
	switch {
	case e.sum >= enough:
		e.Is = ClassLaunchBound
	case e.sum <= 0 && e.Is == ClassLaunchBound:
		e.Is, e.doubt = ClassGPUBound, Doubtful
	case e.sum <= -enough:
		e.Is = ClassGPUBound
	case e.sum >= 0 && e.Is == ClassGPUBound:
		e.Is = ClassUnknown
	}
}
